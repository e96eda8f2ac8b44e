// Where ranks meet, from given environments.
#include "comm/rendezvous/meeting_place.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

using Variables = std::map<std::string, std::string>;

MeetingPlace place(const Variables& variables, Launcher launcher = Launcher::torchrun) {
  return meeting_place(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      {.launcher = launcher});
}

std::string where(const Variables& variables, Launcher launcher = Launcher::torchrun) {
  return to_string(place(variables, launcher).endpoint);
}

}  // namespace

TEST_CASE("torchrun_says_where_and_its_own_port_is_left_to_it") {
  CHECK(where({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}}) == "node1:1234");
  CHECK(where({{"MASTER_ADDR", "node1"}}) == "node1:29500");
  const Variables agent = {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1234"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(where(agent) == "[::1]:1235");
  CHECK(where({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"TESSERA_PORT", "77"}}) == "a:77");
  CHECK(place({{"MASTER_ADDR", "a"}, {"LOCAL_RANK", "3"}}).local_rank == 3);
}

TEST_CASE("slurm_says_its_nodes_and_numbers") {
  const Variables step = {{"SLURM_STEP_NODELIST", "gpu[07-09,11],other"},
                          {"SLURM_JOB_ID", "3"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_LOCALID", "1"}};
  CHECK(where(step, Launcher::slurm) == "gpu07:20023");
  CHECK(place(step, Launcher::slurm).local_rank == 1);
  CHECK(first_of_nodes("one") == "one");
  CHECK(first_of_nodes("one,two") == "one");
  CHECK(first_of_nodes("n[5,7]") == "n5");
  CHECK(first_of_nodes("n[5]") == "n5");
}

TEST_CASE("a_place_that_is_not_said_and_values_without_sense_are_named") {
  CHECK_THROWS_AS(place({}), UsageError);
  CHECK_THROWS_AS(place({{"SLURM_JOB_NODELIST", "a"}}, Launcher::slurm), UsageError);
  for (const char* const port : {"0", "65536", "x", "-1", "80 "}) {
    CAPTURE(port);
    CHECK_THROWS_AS(place({{"MASTER_ADDR", "a"}, {"MASTER_PORT", port}}), UsageError);
    CHECK_THROWS_AS(place({{"MASTER_ADDR", "a"}, {"TESSERA_PORT", port}}), UsageError);
  }
}

TEST_CASE("a_token_that_can_be_guessed_is_refused") {
  CHECK(place({{"MASTER_ADDR", "a"}, {"TESSERA_TOKEN", "0123456789abcdef"}}).token == "0123456789abcdef");
  CHECK(place({{"MASTER_ADDR", "a"}, {"TESSERA_TOKEN", ""}}).token.empty());
  CHECK_THROWS_AS(place({{"MASTER_ADDR", "a"}, {"TESSERA_TOKEN", "secret"}}), UsageError);
}
