// A backend provides this to a World: who this rank is, its communicators and memory, and the end of the job.
//
// Thread safety: make_communicator() from the rank's own thread, everything else from any thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "comm/hosts.hpp"
#include "comm/job_failure.hpp"
#include "comm/patience.hpp"
#include "comm/pinned.hpp"
#include "comm/rank_log.hpp"
#include "tessera/comm/world.hpp"

namespace tessera {

class World::Backend : comm::Pinned {
 public:
  // These are the World's functions of these names.
  struct Facts {
    std::string_view name;
    Device device = Device::cpu();
    int threads = 1;
    comm::Place place{};
  };

  virtual ~Backend() = default;

  const Facts& facts() const { return facts_; }
  comm::JobMember& job() const { return job_; }
  comm::RankLog& log() const { return log_; }
  comm::SignOfLife& own_life() { return own_life_; }  // of World::note_progress()
  // Whether the rank has not been warned of this before. From the rank's own thread.
  bool is_new_warning(const std::string& text) { return warnings_.insert(text).second; }

  // Does what World::make_arena does.
  virtual Arena make_arena(Bytes size) { return Arena(facts_.device, size); }

  // Does what World::make_communicator does.
  virtual std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) = 0;
  virtual CollectiveStaging staging() const { return CollectiveStaging::none; }
  // For World's conveniences, which are about memory of the host, and the device of the streams that they run on.
  // Collective.
  virtual Device host_device() const { return facts_.device; }
  virtual std::unique_ptr<Communicator> make_host_communicator(std::string name) {
    return make_communicator(std::move(name), {.host_memory = true});
  }
  // Whether much data of the host travels faster over the rank's device, although copied there and back.
  virtual bool gathers_over_device() const { return false; }

 protected:
  // Job and log outlive the World, its communicators and all streams that these run on.
  Backend(const Facts& facts, comm::JobMember& job, comm::RankLog& log) : facts_(facts), job_(job), log_(log) {}

 private:
  const Facts facts_;
  comm::JobMember& job_;
  comm::RankLog& log_;
  comm::SignOfLife own_life_;
  std::set<std::string> warnings_;
};

}  // namespace tessera
