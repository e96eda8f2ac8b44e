// The ledger of announcements: agreement, disagreement, ranks that are late or have left.
#include "comm/control/ledger.hpp"

#include <doctest/doctest.h>

#include <string>

#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

constexpr std::size_t channel = 1;

std::string code_of(std::string_view label, std::uint64_t sequence) {
  std::string code;
  encode({.kind = CollectiveKind::barrier, .label = label, .sequence = sequence}, code);
  return code;
}

Ledger ledger_of(int ranks) {
  Ledger ledger(ranks);
  ledger.open("gather");
  return ledger;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("positions_are_agreed_in_order_however_far_ranks_are_apart") {
  Ledger ledger = ledger_of(3);
  for (std::uint64_t number = 1; number <= 100; ++number) {
    CHECK_FALSE(ledger.announce(0, channel, code_of("a", number)));
  }
  for (std::uint64_t number = 1; number <= 100; ++number) {
    CHECK_FALSE(ledger.announce(2, channel, code_of("a", number)));
    CHECK(ledger.agreed(channel) == number - 1);
    CHECK_FALSE(ledger.announce(1, channel, code_of("a", number)));
    CHECK(ledger.agreed(channel) == number);
  }
}

TEST_CASE("a_disagreement_is_seen_with_the_last_rank_and_names_all") {
  Ledger ledger = ledger_of(3);
  CHECK_FALSE(ledger.announce(0, channel, code_of("a", 1)));
  CHECK_FALSE(ledger.announce(1, channel, code_of("b", 1)));
  const auto verdict = ledger.announce(2, channel, code_of("a", 1));
  REQUIRE(verdict);
  CHECK(verdict->position == Position{channel, 1});
  CHECK(has(verdict->text, "communicator gather"));
  CHECK(has(verdict->text, "ranks 0, 2 called #1 barrier \"a\"; rank 1 called #1 barrier \"b\""));
  CHECK(ledger.agreed(channel) == 0);
}

TEST_CASE("a_leaver_that_others_wait_for_is_named_whoever_is_first") {
  Ledger waiting_first = ledger_of(2);
  CHECK_FALSE(waiting_first.announce(0, channel, code_of("a", 1)));
  const auto on_leaving = waiting_first.leave(1);
  REQUIRE(on_leaving);
  CHECK(
      has(on_leaving->text, "rank 1 has left the job while rank 0 waited in barrier \"a\" (communicator gather, #1)"));

  Ledger leaving_first = ledger_of(2);
  CHECK_FALSE(leaving_first.announce(1, channel, code_of("a", 1)));
  CHECK_FALSE(leaving_first.leave(1));
  CHECK_FALSE(leaving_first.announce(0, channel, code_of("a", 1)));
  const auto on_announcing = leaving_first.announce(0, channel, code_of("b", 2));
  REQUIRE(on_announcing);
  CHECK(on_announcing->position == Position{channel, 2});
}

TEST_CASE("lateness_names_the_missing_or_says_that_all_came") {
  Ledger ledger = ledger_of(3);
  const std::string code = code_of("a", 1);
  CHECK_FALSE(ledger.announce(0, channel, code));
  CHECK_FALSE(ledger.announce(2, channel, code));
  const auto late = [&](Ledger::WaitFor waiting_for) {
    return ledger.late({.position = {channel, 1},
                        .code = code,
                        .timeout = std::chrono::milliseconds(400),
                        .waiting_for = waiting_for});
  };
  REQUIRE(late(Ledger::WaitFor::ranks));
  CHECK(has(late(Ledger::WaitFor::end)->text,
            "ranks 0, 2 waited up to 0.4 s in barrier \"a\" (communicator gather, #1) for rank 1"));
  CHECK_FALSE(ledger.announce(1, channel, code));
  CHECK_FALSE(late(Ledger::WaitFor::ranks));
  CHECK(has(late(Ledger::WaitFor::end)->text, "did not end within 0.4 s, though ranks 0-2 came"));
  const auto works = [](int rank) { return rank != 2; };
  CHECK_FALSE(ledger.late({.position = {channel, 1},
                           .code = code,
                           .timeout = std::chrono::milliseconds(400),
                           .waiting_for = Ledger::WaitFor::end,
                           .is_silent = works}));
}

TEST_CASE("groups_agree_each_by_itself") {
  Ledger ledger(4);
  ledger.open("rows", {0, 1});
  ledger.open("rows", {2, 3});
  CHECK_FALSE(ledger.announce(3, 2, code_of("b", 1)));
  CHECK_FALSE(ledger.announce(0, 1, code_of("a", 1)));
  CHECK_FALSE(ledger.announce(2, 2, code_of("b", 1)));
  CHECK(ledger.agreed(2) == 1);
  CHECK(ledger.agreed(1) == 0);
  CHECK_FALSE(ledger.announce(1, 1, code_of("a", 1)));
  CHECK(ledger.agreed(1) == 1);
  CHECK(ledger.announced(2, 3) == 1);
  CHECK(ledger.place(2, 3) == 1);
}

TEST_CASE("a_group_of_one_needs_nobody") {
  Ledger ledger(3);
  ledger.open("alone", {2});
  for (std::uint64_t number = 1; number <= 20; ++number) {
    CHECK_FALSE(ledger.announce(2, channel, code_of("a", number)));
    CHECK(ledger.agreed(channel) == number);
  }
  CHECK_FALSE(ledger.leave(0));
  CHECK_FALSE(ledger.announce(2, channel, code_of("a", 21)));
  CHECK(ledger.agreed(channel) == 21);
}

TEST_CASE("texts_about_a_group_name_ranks_of_the_job_in_ascending_order") {
  Ledger ledger(6);
  ledger.open("columns", {5, 3, 1});
  CHECK(ledger.place(channel, 3) == 1);
  CHECK_FALSE(ledger.announce(5, channel, code_of("a", 1)));
  CHECK_FALSE(ledger.announce(1, channel, code_of("a", 1)));
  const std::string code = code_of("a", 1);
  const auto late = ledger.late({.position = {channel, 1},
                                 .code = code,
                                 .timeout = std::chrono::milliseconds(400),
                                 .waiting_for = Ledger::WaitFor::ranks});
  REQUIRE(late);
  CHECK(has(late->text, "ranks 1, 5 waited up to 0.4 s in barrier \"a\" (communicator columns, #1) for rank 3"));
  const auto verdict = ledger.announce(3, channel, code_of("b", 1));
  REQUIRE(verdict);
  CHECK(has(verdict->text, "ranks 1, 5 called #1 barrier \"a\"; rank 3 called #1 barrier \"b\""));
}

// A rank that saves a checkpoint by itself waits there for ranks that wait for it here.
TEST_CASE("a_rank_that_is_missed_is_told_with_where_it_waits_instead") {
  Ledger ledger = ledger_of(3);
  ledger.open("checkpoint");
  CHECK_FALSE(ledger.announce(0, 2, code_of("checkpoint: begin", 1)));
  for (const int rank : {1, 2}) CHECK_FALSE(ledger.announce(rank, channel, code_of("a", 5)));
  const auto late_at = [&](std::size_t where, const std::string& code) {
    return ledger.late({.position = {where, 1},
                        .code = code,
                        .timeout = std::chrono::milliseconds(400),
                        .waiting_for = Ledger::WaitFor::ranks});
  };
  CHECK(has(late_at(channel, code_of("a", 5)).value().text,
            "; rank 0 waits in barrier \"checkpoint: begin\" (communicator checkpoint, #1) for ranks 1, 2"));
  CHECK(has(late_at(2, code_of("checkpoint: begin", 1)).value().text,
            "; ranks 1, 2 wait in barrier \"a\" (communicator gather, #5) for rank 0"));
}

// Stages of a pipeline wait so: the text of the last one names them all, up to one of which a channel elsewhere knows.
TEST_CASE("a_rank_that_is_missed_is_told_with_all_who_wait_for_each_other_behind_it") {
  Ledger ledger(5);
  for (const int rank : {0, 1, 2}) ledger.open("pair", {rank, rank + 1});
  for (const int rank : {1, 2, 3}) CHECK_FALSE(ledger.announce(rank, static_cast<std::size_t>(rank), code_of("x", 1)));
  const auto late = ledger.late({.position = {3, 1},
                                 .code = code_of("x", 1),
                                 .timeout = std::chrono::milliseconds(400),
                                 .waiting_for = Ledger::WaitFor::ranks,
                                 .awaited_by = [](int rank) { return rank == 0 ? 4 : -1; }});
  REQUIRE(late);
  CHECK(has(late->text, "rank 3 waited up to 0.4 s in barrier \"x\" (communicator pair, #1) for rank 2"));
  CHECK(has(late->text,
            "; rank 2 waits in barrier \"x\" (communicator pair, #1) for rank 1; rank 1 waits in barrier "
            "\"x\" (communicator pair, #1) for rank 0; rank 0 waits for rank 4"));
}

// All who are gone by then are named, and a rank that came before it went is not missed.
TEST_CASE("ranks_whose_processes_have_ended_are_named_as_such") {
  Ledger ledger = ledger_of(4);
  for (const int rank : {0, 3}) CHECK_FALSE(ledger.announce(rank, channel, code_of("a", 1)));
  CHECK_FALSE(ledger.leave(3, Ledger::Leaving::ended));
  CHECK(has(ledger.leave(1, Ledger::Leaving::ended).value().text,
            "the process of rank 1 has ended while ranks 0, 3 waited"));
  CHECK(has(ledger.leave(2, Ledger::Leaving::ended).value().text,
            "the processes of ranks 1, 2 have ended while ranks 0, 3"));
}

TEST_CASE("only_leavers_of_the_group_are_missed") {
  Ledger ledger(4);
  ledger.open("rows", {0, 2});
  ledger.open("rows", {1, 3});
  CHECK_FALSE(ledger.leave(1));
  CHECK_FALSE(ledger.announce(0, 1, code_of("a", 1)));
  CHECK_FALSE(ledger.announce(2, 1, code_of("a", 1)));
  CHECK(ledger.agreed(1) == 1);
  const auto verdict = ledger.announce(3, 2, code_of("a", 1));
  REQUIRE(verdict);
  CHECK(has(verdict->text, "rank 1 has left the job while rank 3 waited in barrier \"a\" (communicator rows, #1)"));
}

// Rank 1 waits in its row for rank 0, which is alive; so whoever waits for rank 1 in a column waits on.
TEST_CASE("a_rank_that_waits_in_another_group_is_as_alive_as_those_for_whom_it_waits") {
  Ledger ledger(4);
  ledger.open("rows", {0, 1});
  ledger.open("rows", {2, 3});
  ledger.open("columns", {0, 2});
  ledger.open("columns", {1, 3});
  CHECK_FALSE(ledger.announce(1, 1, code_of("row", 1)));
  CHECK_FALSE(ledger.announce(3, 4, code_of("column", 1)));
  const std::string code = code_of("column", 1);
  const auto late = [&](int living) {
    return ledger.late({.position = {4, 1},
                        .code = code,
                        .timeout = std::chrono::milliseconds(400),
                        .waiting_for = Ledger::WaitFor::ranks,
                        .is_silent = [living](int rank) { return rank != living; }});
  };
  CHECK_FALSE(late(0));
  REQUIRE(late(2));
  CHECK(has(late(2)->text, "rank 3 waited up to 0.4 s in barrier \"column\" (communicator columns, #1) for rank 1"));
}

TEST_CASE("announcements_of_ranks_that_are_no_members_are_errors") {
  Ledger ledger(4);
  ledger.open("rows", {0, 2});
  CHECK_THROWS_AS(ledger.announce(1, channel, code_of("a", 1)), DataError);
  CHECK_THROWS_AS(ledger.place(channel, 3), DataError);
}

TEST_CASE("channels_that_are_not_open_and_ranks_too_far_ahead_are_errors") {
  Ledger ledger = ledger_of(2);
  CHECK_THROWS_AS(ledger.announce(0, 2, code_of("a", 1)), DataError);
  const std::string code = code_of("a", 1);
  const auto run_away = [&] {
    for (int i = 0; i <= 1 << 16; ++i) ledger.announce(0, channel, code);
  };
  CHECK_THROWS_AS(run_away(), DataError);
}
