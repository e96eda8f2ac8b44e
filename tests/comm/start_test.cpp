// How a job was started, from given environments: who wins, what each of them means for this build, and where ranks
// that are processes meet.
#include "comm/start.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "../error_text.hpp"
#include "comm/rendezvous/join.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Start detect(const Variables& variables, bool has_mpi = true) {
  return detect_start(environment_of(variables), has_mpi);
}

Variables together(std::initializer_list<Variables> all) {
  Variables result;
  for (const Variables& variables : all) result.insert(variables.begin(), variables.end());
  return result;
}

template <typename Expected>
std::string refusal(const Start& start, const LaunchOptions& options, const Possible& possible) {
  return tests::error_text<Expected>([&] { require_startable(start, options, possible); }, "no error");
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
const Variables mpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}};
const Variables pmix = {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "job.0"}};
const Variables torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}};
const Variables slurm_job = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "6"}};
const Variables slurm_step = together({slurm_job, {{"SLURM_PROCID", "4"}, {"SLURM_STEP_NUM_TASKS", "6"}}});

}  // namespace

TEST_CASE("each_launcher_is_known_by_its_variables") {
  CHECK(detect({}).launcher == Launcher::alone);
  CHECK(detect({}).ranks == 1);
  const Start from_open_mpi = detect(open_mpi);
  CHECK(from_open_mpi.launcher == Launcher::mpi);
  CHECK(from_open_mpi.rank == 2);
  CHECK(from_open_mpi.ranks == 4);
  CHECK(from_open_mpi.by == "Open MPI's mpirun");
  CHECK(detect(mpich).by == "MPICH's mpirun");
  CHECK(detect(mpich).ranks == 3);
  CHECK(detect(pmix).rank == 5);
  CHECK(detect(pmix).ranks == 0);
  CHECK(detect(torchrun).launcher == Launcher::torchrun);
  CHECK(detect(torchrun).rank == 3);
  CHECK(detect(slurm_step).launcher == Launcher::slurm);
  CHECK(detect(slurm_step).ranks == 6);
}

TEST_CASE("mpi_comes_before_torchrun_before_slurm_before_alone") {
  CHECK(detect(together({open_mpi, torchrun, slurm_step})).launcher == Launcher::mpi);
  CHECK(detect(together({pmix, slurm_step})).launcher == Launcher::mpi);
  CHECK(detect(together({pmix, slurm_step})).ranks == 6);  // of a step, SLURM says how many
  CHECK(detect(together({torchrun, slurm_step})).launcher == Launcher::torchrun);
  CHECK(detect(together({open_mpi, pmix})).by == "Open MPI's mpirun");
}

TEST_CASE("without_mpi_in_the_build_an_mpi_launch_comes_last") {
  CHECK(detect(together({open_mpi, torchrun}), false).launcher == Launcher::torchrun);
  CHECK(detect(together({open_mpi, slurm_step}), false).launcher == Launcher::slurm);
  CHECK(detect(open_mpi, false).launcher == Launcher::mpi);
  CHECK(detect({}, false).launcher == Launcher::alone);
}

TEST_CASE("variables_that_are_anybodys_are_no_launch") {
  CHECK(detect(slurm_job).launcher == Launcher::alone);  // a batch script is one process
  CHECK(detect({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}).launcher == Launcher::alone);
  CHECK(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).launcher == Launcher::alone);
  CHECK(detect({{"PMIX_RANK", "0"}}).launcher == Launcher::alone);
  CHECK(detect({{"OMPI_COMM_WORLD_SIZE", "2"}}).launcher == Launcher::alone);
}

TEST_CASE("variables_that_make_no_sense_are_named") {
  for (const char* const value : {"", "x", "-1", "4", "2 ", "99999999999"}) {
    CAPTURE(value);
    CHECK_THROWS_AS(detect({{"OMPI_COMM_WORLD_RANK", value}, {"OMPI_COMM_WORLD_SIZE", "4"}}), UsageError);
  }
  CHECK_THROWS_AS(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}), UsageError);
}

TEST_CASE("half_of_what_torchrun_says_is_no_launch_of_many_single_ranks") {
  const Variables half = {{"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}};
  const auto refusal_of = [&](const Variables& variables) {
    return tests::error_text<UsageError>([&] { detect(together({half, variables})); }, "no error");
  };
  CHECK(has(refusal_of({{"RANK", "1"}}), "MASTER_ADDR and RANK, LOCAL_RANK are set in the environment"));
  CHECK(has(refusal_of({{"RANK", "1"}}), "WORLD_SIZE is not"));
  CHECK(has(refusal_of({{"WORLD_SIZE", "2"}}), "RANK is not"));
  CHECK(refusal_of({{"WORLD_SIZE", "1"}}) == "no error");
  // Other launchers and scripts set these.
  const Variables others = {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}, {"WORLD_SIZE", "2"}};
  CHECK_THROWS_WITH_AS(detect(together({others, {{"RANK", "1"}}})), doctest::Contains("LOCAL_RANK is not"), UsageError);
  CHECK_THROWS_WITH_AS(detect(others), doctest::Contains("RANK and LOCAL_RANK are not"), UsageError);
  CHECK(detect({{"MASTER_ADDR", "a"}}).launcher == Launcher::alone);
  CHECK(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).launcher == Launcher::alone);
  CHECK(detect(together({others, slurm_step})).launcher == Launcher::slurm);
  CHECK(detect(together({half, {{"WORLD_SIZE", "6"}}, slurm_step})).launcher == Launcher::slurm);
  CHECK(detect(together({half, {{"WORLD_SIZE", "6"}}, open_mpi})).launcher == Launcher::mpi);
}

TEST_CASE("a_number_of_ranks_beside_a_launcher_is_an_error_that_explains_itself") {
  for (const Variables& variables : {open_mpi, torchrun, slurm_step}) {
    for (const bool on_devices : {false, true}) {
      const Possible all{.mpi = true, .nccl = true, .on_devices = on_devices};
      const std::string text = refusal<UsageError>(detect(variables), {.ranks = 2}, all);
      CHECK(has(text, "--ranks 2"));
      CHECK(has(text, "leave --ranks out"));
    }
  }
  CHECK(refusal<UsageError>(detect({}), {.ranks = 2}, {.mpi = true}) == "no error");
}

TEST_CASE("a_launch_that_this_build_cannot_serve_points_to_one_that_it_can") {
  const std::string without = refusal<UnavailableError>(detect(open_mpi, false), {}, {});
  CHECK(has(without, "Open MPI's mpirun has started this program as rank 2 of 4"));
  CHECK(has(without, "no MPI half"));
  CHECK(has(without, "torchrun or srun"));
  for (const Variables& variables : {open_mpi, torchrun, slurm_step}) {
    const std::string text = refusal<UnavailableError>(detect(variables), {}, {.mpi = true, .on_devices = true});
    CHECK(has(text, "exchange data over NCCL, which this build of Tessera does not have"));
    CHECK(has(text, "--device cpu"));
  }
}

TEST_CASE("every_launcher_starts_ranks_on_the_cpu_and_with_nccl_on_devices") {
  for (const Variables& variables : {open_mpi, torchrun, slurm_step}) {
    CHECK(refusal<Error>(detect(variables), {}, {.mpi = true}) == "no error");
    CHECK(refusal<Error>(detect(variables), {}, {.mpi = true, .nccl = true, .on_devices = true}) == "no error");
  }
  for (const Variables& variables : {torchrun, slurm_step}) {
    CHECK(refusal<Error>(detect(variables, false), {}, {}) == "no error");
  }
}

TEST_CASE("a_backend_that_the_ranks_cannot_have_is_an_error_that_names_what_helps") {
  const auto refusal_of = [](const Variables& variables, const LaunchOptions& options, bool on_devices) {
    return tests::error_text<Error>([&] { require_backend(detect(variables), options, on_devices); }, "no error");
  };
  CHECK(refusal_of({}, {}, false) == "no error");
  CHECK(refusal_of({}, {.ranks = 2, .backend = BackendChoice::nccl}, true) == "no error");
  CHECK(has(refusal_of({}, {.backend = BackendChoice::nccl}, false), "--backend nccl: ranks compute on the CPU"));
  CHECK(has(refusal_of({}, {.sums = SumChoice::fast}, true), "--sums fast: only NCCL"));
  for (const Variables& variables : {open_mpi, torchrun, slurm_step}) {
    CHECK(refusal_of(variables, {.backend = BackendChoice::nccl, .sums = SumChoice::fast}, true) == "no error");
    CHECK(refusal_of(variables, {.sums = SumChoice::fast}, true) == "no error");
    CHECK(has(refusal_of(variables, {.backend = BackendChoice::nccl}, false),
              "--backend nccl: ranks compute on the CPU"));
    CHECK(has(refusal_of(variables, {.sums = SumChoice::fast}, false), "--sums fast: only NCCL"));
  }
}

TEST_CASE("the_line_about_the_start_counts_ranks_hosts_and_threads") {
  CHECK(start_line(detect(open_mpi), {.ranks = 4, .hosts = 1, .here = {0, 1, 2, 3}}, 1) ==
        "4 ranks on 1 host, processes of Open MPI's mpirun; on this host 4 ranks with 1 thread each, on the CPU");
}

// ---- where ranks meet ----

namespace {

MeetingPlace place(const Variables& variables, Launcher launcher = Launcher::torchrun) {
  return meeting_place(environment_of(variables), {.launcher = launcher});
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
  CHECK(where(step, Launcher::slurm) == "gpu07:20302");
  const Variables one_node = {{"SLURM_STEP_NUM_NODES", "1"}};
  CHECK(where(together({step, one_node}), Launcher::slurm) == "127.0.0.1:20302");
  CHECK(where(together({step, one_node, {{"MASTER_ADDR", "a"}}}), Launcher::slurm) == "a:20302");
  // The upper bits of a federation's numbers say which cluster.
  const Variables federated = {{"SLURM_STEP_NODELIST", "a"}, {"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "2"}};
  CHECK(where(federated, Launcher::slurm) == "a:29174");
  CHECK(place(step, Launcher::slurm).local_rank == 1);
  CHECK(place(step, Launcher::slurm).job == "SLURM job 3, step 2");
  CHECK(place({{"MASTER_ADDR", "a"}, {"TORCHELASTIC_RUN_ID", "7"}}).job == "torchrun's run 7");
  CHECK(first_of_nodes("one") == "one");
  CHECK(first_of_nodes("one,two") == "one");
  CHECK(first_of_nodes("n[5,7]") == "n5");
  CHECK(first_of_nodes("n[5]") == "n5");
}

TEST_CASE("jobs_of_own_scripts_are_told_apart_by_what_they_start_unless_a_token_does") {
  const Variables script = {{"MASTER_ADDR", "a"}};
  const std::string mine = place(script).job;
  CHECK(has(mine, "the program of hash "));
  CHECK(place(script).job == mine);
  CHECK(place(together({script, {{"TESSERA_TOKEN", "0123456789abcdef"}}})).job.empty());
  // torchrun's own default says no more.
  CHECK(place(together({script, {{"TORCHELASTIC_RUN_ID", "none"}}})).job == mine);
  using namespace std::string_literals;
  const std::string one = name_of_program("--data\0a\0"s, "/runs");
  for (const std::string& other : {name_of_program("--data\0b\0"s, "/runs"), name_of_program("--data\0a\0"s, "/run"),
                                   name_of_program("--data\0"s, "/runs"), mine}) {
    CHECK(other != one);
  }
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
