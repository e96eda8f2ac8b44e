// The local backend: the conformance suite with 1 to 8 ranks, and the meeting point of ranks, where a failure ends all
// waits, but nobody leaves while another rank may read its memory.
#include "comm/local/local_group.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "../error_text.hpp"
#include "comm/task_communicator.hpp"
#include "conformance.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

void check_with_all_sizes(void (*property)(World&), int least_ranks, std::chrono::milliseconds timeout) {
  for (const int ranks : conformance::rank_counts(least_ranks, 8)) {
    CAPTURE(ranks);
    for (const std::string& line : conformance::violations({.ranks = ranks, .timeout = timeout}, property))
      FAIL_CHECK(line);
  }
}

}  // namespace

#define TESSERA_LOCAL_PROPERTY(name, least_ranks, timeout) \
  TEST_CASE("local: " #name) { check_with_all_sizes(conformance::name, least_ranks, conformance::timeout_of(timeout)); }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_LOCAL_PROPERTY)

namespace {

LocalPost barrier_post(std::uint64_t sequence) { return {.signature = signature_of(Barrier{"meeting"}, sequence)}; }

// A job of threads with one communicator over some of them.
struct Meeting {
  Meeting(int ranks, std::chrono::milliseconds timeout, const std::string& name, const std::vector<int>& members)
      : job(ranks, timeout), group(job, job.open(job.lock(), name, members), name, members) {}
  ControlRoom job;
  LocalGroup group;
};

// Whether `flag` is still unset after a while: long enough for a rank that does not wait to have gone on.
bool stays_unset(const std::atomic<bool>& flag) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return !flag;
}

// Rank 0 is in the middle of moving, rank 1 waits for it in `wait`; then the job ends by `end`.
template <typename Wait, typename End>
void check_rank_1_leaves_after_rank_0_has_moved(Wait&& wait, End&& end) {
  Meeting meeting(2, std::chrono::seconds(60), "gather", {0, 1});
  LocalGroup& group = meeting.group;
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
  end(meeting.job);
  CHECK(stays_unset(rank_1_left));
  CHECK_THROWS_AS(group.regroup(0), AbortedError);
  rank_1.join();
  CHECK(rank_1_left);
}

void abort_job(ControlRoom& job) { job.abort(0, "disk full", nullptr); }

}  // namespace

TEST_CASE("nobody_leaves_an_aborted_collective_while_a_peer_still_moves") {
  check_rank_1_leaves_after_rank_0_has_moved([](LocalGroup& group) { group.finish(1); }, abort_job);
  check_rank_1_leaves_after_rank_0_has_moved([](LocalGroup& group) { group.regroup(1); }, abort_job);
}

TEST_CASE("rank_that_fails_while_moving_waits_for_the_others_too") {
  Meeting meeting(2, std::chrono::seconds(60), "gather", {0, 1});
  LocalGroup& group = meeting.group;
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
  while (!meeting.job.failure()) std::this_thread::yield();
  CHECK(stays_unset(rank_1_left));
  CHECK_THROWS_WITH_AS(group.finish(0), "rank 1 failed first: bad sector", AbortedError);
  rank_1.join();
}

TEST_CASE("finish_waits_until_every_peer_has_moved") {
  Meeting meeting(2, std::chrono::seconds(60), "gather", {0, 1});
  LocalGroup& group = meeting.group;
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

// ---- groups of some of the job's ranks: errors name ranks, not places ----

TEST_CASE("ranks_that_miss_others_are_named_in_their_order") {
  Meeting meeting(5, std::chrono::milliseconds(100), "gather over shard", {4, 1, 3});
  LocalGroup& group = meeting.group;
  std::string texts[2];
  std::thread rank_4(
      [&] { texts[0] = tests::error_text<CommunicationError>([&] { group.enter(0, barrier_post(1)); }); });
  texts[1] = tests::error_text<CommunicationError>([&] { group.enter(2, barrier_post(1)); });
  rank_4.join();
  CHECK(texts[0] == texts[1]);
  CHECK(texts[0].find("ranks 3, 4 waited up to 0.1 s") == 0);
  CHECK(texts[0].find("(communicator gather over shard, #1) for rank 1, which") != std::string::npos);
}

TEST_CASE("failures_in_a_group_are_those_of_its_ranks") {
  Meeting moving(4, std::chrono::seconds(60), "gather", {3});
  LocalGroup& alone = moving.group;
  alone.enter(0, barrier_post(1));
  alone.fail(0, std::make_exception_ptr(DataError("bad sector")));
  CHECK(moving.job.failure()->rank == 3);

  Meeting calling(4, std::chrono::seconds(60), "gather", {3});
  ThreadControl rank_3(calling.job, 3);
  const Claim first(calling.group.busy(0), rank_3, calling.group.name());
  std::thread other_stream([&] {
    const auto claim_again = [&] { const Claim second(calling.group.busy(0), rank_3, calling.group.name()); };
    CHECK(tests::error_text<UsageError>(claim_again).find("rank 3 drives communicator gather from two streams") == 0);
  });
  other_stream.join();
  CHECK(calling.job.failure()->rank == 3);
}
