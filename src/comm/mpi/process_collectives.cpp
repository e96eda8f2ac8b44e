// The collectives of ranks that are processes: one rank's part of each, on its stream's thread, which blocks until all
// ranks have done theirs. As among threads a rank reads its peers' arenas; where some rank's data cannot be reached,
// all of it goes through staging areas.
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "comm/meeting_collectives.hpp"
#include "comm/mpi/process_group.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// One rank's part of one collective: a Meeting (meeting_collectives.hpp) in both ways.
struct ProcessCall {
  std::shared_ptr<ProcessGroup> group;
  Signature signature;

  template <typename Operation>
  void operator()(const Operation& operation) const {
    run_collective(*this, operation);
  }

  static constexpr std::size_t round_bytes = shared::staging_bytes;
  int place() const { return group->place(); }
  int size() const { return group->size(); }
  bool is_direct() const { return group->is_direct(); }
  const std::byte* data_of(int place, std::size_t segment) const { return group->data_of(place, segment); }
  std::byte* staging(int place, std::size_t round) const { return group->staging(place, round); }
  std::span<const void*> scratch() const { return group->scratch(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void sum(const kernels::RankedSum& of) const { kernels::ranked_sum_cpu(of); }
  void regroup(const Staged& staged = {}) const { group->regroup(staged); }

  template <typename Move>
  void meet(const std::byte* data, const Move& move) const {
    const Claim claim(group->busy(), group->job(), group->name());
    group->enter(signature, data);
    try {
      move();
    } catch (...) {
      group->fail(std::current_exception());
      throw;
    }
    group->finish();
  }
};

struct ProcessCalls {
  std::shared_ptr<ProcessGroup> group;
  ProcessCall call(Stream&, const Signature& signature) const { return {group, signature}; }
};

}  // namespace

std::unique_ptr<Communicator> make_process_communicator(std::shared_ptr<ProcessGroup> group) {
  return make_task_communicator(group->members(), group->name(), ProcessCalls{group});
}

}  // namespace tessera::comm
