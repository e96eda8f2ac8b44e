// The local backend: the conformance suite with 1 to 8 ranks, and the meeting point of ranks, where a failure ends all
// waits, but nobody leaves while another rank may read its memory.
#include "comm/local/local_group.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "conformance.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

void check_with_all_sizes(void (*property)(World&), int least_ranks, std::chrono::milliseconds timeout) {
  for (int ranks = least_ranks; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    for (const std::string& line : conformance::violations({.ranks = ranks, .timeout = timeout}, property))
      FAIL_CHECK(line);
  }
}

}  // namespace

#define TESSERA_LOCAL_PROPERTY(name, least_ranks, timeout)                                    \
  TEST_CASE("local: " #name) {                                                                \
    check_with_all_sizes(conformance::name, least_ranks, std::chrono::milliseconds(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_LOCAL_PROPERTY)

namespace {

LocalPost barrier_post(std::uint64_t sequence) { return {.signature = signature_of(Barrier{"meeting"}, sequence)}; }

// Whether `flag` is still unset after a while: long enough for a rank that does not wait to have gone on.
bool stays_unset(const std::atomic<bool>& flag) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return !flag;
}

// Rank 0 is in the middle of moving, rank 1 waits for it in `wait`; then the job ends by `end`.
template <typename Wait, typename End>
void check_rank_1_leaves_after_rank_0_has_moved(Wait&& wait, End&& end) {
  LocalJob job(2, std::chrono::seconds(60));
  LocalGroup& group = job.group(0, "gather");
  std::atomic<bool> rank_1_entered = false;
  std::atomic<bool> rank_1_left = false;
  std::thread rank_1([&] {
    group.enter(1, barrier_post(1));
    rank_1_entered = true;
    CHECK_THROWS_AS(wait(group), AbortedError);
    rank_1_left = true;
  });
  group.enter(0, barrier_post(1));
  while (!rank_1_entered) std::this_thread::yield();
  end(job, group);
  CHECK(stays_unset(rank_1_left));
  CHECK_THROWS_AS(group.regroup(0), AbortedError);
  rank_1.join();
  CHECK(rank_1_left);
}

void abort_job(LocalJob& job, LocalGroup&) { job.abort(0, "disk full", nullptr); }

}  // namespace

TEST_CASE("nobody_leaves_an_aborted_collective_while_a_peer_still_moves") {
  check_rank_1_leaves_after_rank_0_has_moved([](LocalGroup& group) { group.finish(1); }, abort_job);
  check_rank_1_leaves_after_rank_0_has_moved([](LocalGroup& group) { group.regroup(1); }, abort_job);
}

TEST_CASE("rank_that_fails_while_moving_waits_for_the_others_too") {
  LocalJob job(2, std::chrono::seconds(60));
  LocalGroup& group = job.group(0, "gather");
  std::atomic<bool> both_entered = false;
  std::atomic<bool> rank_1_left = false;
  std::thread rank_1([&] {
    group.enter(1, barrier_post(1));
    while (!both_entered) std::this_thread::yield();
    group.fail(1, std::make_exception_ptr(DataError("bad sector")));
    rank_1_left = true;
  });
  group.enter(0, barrier_post(1));
  both_entered = true;
  while (!job.failure()) std::this_thread::yield();
  CHECK(stays_unset(rank_1_left));
  CHECK_THROWS_WITH_AS(group.finish(0), "rank 1 failed first: bad sector", AbortedError);
  rank_1.join();
}

TEST_CASE("finish_waits_until_every_peer_has_moved") {
  LocalJob job(2, std::chrono::seconds(60));
  LocalGroup& group = job.group(0, "gather");
  std::atomic<bool> rank_1_finished = false;
  std::thread rank_1([&] {
    group.enter(1, barrier_post(1));
    group.finish(1);
    rank_1_finished = true;
  });
  group.enter(0, barrier_post(1));
  CHECK(stays_unset(rank_1_finished));
  group.finish(0);
  rank_1.join();
  CHECK(rank_1_finished);
}
