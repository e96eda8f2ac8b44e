// What a backend provides to a World: who this rank is, communicators, and the end of the job.
//
// Thread safety: make_communicator() from the rank's own thread, everything else from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "comm/job_failure.hpp"
#include "tessera/comm/world.hpp"

namespace tessera {

class World::Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Device device() const = 0;
  virtual int threads() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual std::string_view name() const = 0;

  // As World::make_arena.
  virtual Arena make_arena(Bytes size) { return Arena(device(), size); }

  // As World::make_communicator.
  virtual std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) = 0;
  virtual CollectiveStaging staging() const { return CollectiveStaging::none; }
  // For World's conveniences, which are about memory of the host, and the device of the streams that they run on.
  // Collective.
  virtual Device host_device() const { return device(); }
  virtual std::unique_ptr<Communicator> make_host_communicator(std::string name) {
    return make_communicator(std::move(name), {.host_memory = true});
  }

  virtual void warn(std::string_view text) noexcept = 0;

  // The first call of any rank wins; all waits end.
  virtual void abort(std::string_view cause) noexcept = 0;
  // Null while nothing failed. Never changes once it is there.
  virtual const comm::JobFailure* failure() const noexcept = 0;

 protected:
  Backend() = default;
};

}  // namespace tessera
