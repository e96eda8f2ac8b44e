// The nccl backend does these beside the conformance suite: one order of launch, NCCL's own sums, errors and hangs of
// devices, and memory.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../comm/property.hpp"
#include "../error_text.hpp"
#include "../shard/pipeline.hpp"
#include "cuda_runtime.h"
#include "echo.hpp"
#include "nccl_of_tests.hpp"
#include "nccl_ranks.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;
using namespace tessera::comm;
using conformance::queued_stream;
using conformance::Shared;
using conformance::test_value;
using test::Echo;

namespace {

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void check_all_well(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) CHECK(text == "");
}

// Gathers on one communicator and sums on the other, in turn, as a step does. As there, memory is taken before anybody
// can launch.
void take_turns(World& world, int rounds) {
  Stream gather_stream = queued_stream("gather");
  Stream reduce_stream = queued_stream("reduce");
  const auto ranks = static_cast<std::size_t>(world.size());
  Shared<float> data(ranks * 64, static_cast<float>(world.rank()));
  Shared<float> sums(64);
  Shared<std::byte> parts(ranks * 32, static_cast<std::byte>(world.rank()));
  const auto gather = world.make_communicator("gather");
  const auto reduce = world.make_communicator("reduce");
  for (int round = 0; round < rounds; ++round) {
    gather->all_gather(gather_stream, {.data = parts.data(), .shard = Bytes(32), .label = "blocks.3"});
    reduce->reduce_scatter(reduce_stream, {.data = reinterpret_cast<const std::byte*>(data.data()),
                                           .result = sums.data(),
                                           .shard_elements = 64,
                                           .label = "blocks.4"});
  }
  gather_stream.synchronize();
  reduce_stream.synchronize();
  const float expected = static_cast<float>(ranks * (ranks - 1) / 2);
  for (const float sum : sums) {
    if (sum != expected) throw std::runtime_error("a wrong sum");
  }
}

}  // namespace

TEST_CASE("two_communicators_in_one_order_run_to_their_end") {
  for (const bool orders_launches : {true, false}) {
    CAPTURE(orders_launches);
    std::atomic<int> beside = 0;
    const FakeFaults faults{.orders_launches = orders_launches, .delay_seed = 3, .beside = &beside};
    check_all_well(run_nccl_ranks({.ranks = 3, .faults = faults}, [](World& world) { take_turns(world, 30); }));
    if (!orders_launches) CHECK(beside == 0);
  }
}

TEST_CASE("launches_of_ranks_that_share_a_device_wait_for_their_own_ranks_alone") {
  check_all_well(run_nccl_ranks({.ranks = 3, .faults = {.orders_launches = false, .delay_seed = 4}, .one_device = true},
                                [](World& world) { take_turns(world, 30); }));
}

// Taking memory of a device, and giving it back, waits for all that runs there.
TEST_CASE("ranks_that_share_a_device_take_memory_and_give_it_back_while_nobody_waits_for_them") {
  struct SlowMemory {
    SlowMemory() { emulated::delay_memory(std::chrono::milliseconds(10)); }
    ~SlowMemory() { emulated::delay_memory({}); }
  };
  const auto work = [](World& world) {
    Stream stream = queued_stream("gather");
    Shared<std::byte> parts(4 * 32, static_cast<std::byte>(world.rank()));
    const auto everybody = world.make_communicator("everybody");
    const Mesh mesh = world.mesh({{"replicate", 2}, {"shard", 2}});
    std::vector<std::unique_ptr<Communicator>> made;
    for (const char* axis : {"shard", "replicate"}) {
      made.push_back(world.make_communicator("part", {.group = mesh.group(axis)}));
      everybody->all_gather(stream, {.data = parts.data(), .shard = Bytes(32), .label = "blocks.3"});
    }
    stream.synchronize();
    for (int round = 0; round < 3; ++round) {
      world.gather(std::vector<std::byte>(std::size_t{64} << 10), "over the device");
    }
  };
  const SlowMemory slow;
  check_all_well(run_nccl_ranks({.ranks = 4, .timeout = std::chrono::seconds(10), .one_device = true}, work));
}

// A replica of one rank need not ask others for its gradient, and the other is a step ahead meanwhile: on the device
// its outer step waits for this rank.
TEST_CASE("a_rank_looks_at_its_gradient_in_16_bits_while_a_peer_waits_for_it_on_their_device") {
  const auto work = [](World& world) {
    Echo echo;
    FullyShard model(world, {.strategy = Strategy::ddp, .replicas = 2, .outer = {.every = 1}, .precision = bf16_mixed});
    Unit& unit = model.add(echo, "echo");
    model.finalize(AdamW{.learning_rate = 0.0f});
    world.barrier("before the first step");
    for (int step = 0; step < 3; ++step) {
      model.forward(echo);
      model.backward(echo);
      model.update();
      if (world.rank() == 1) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (const ParameterPiece& piece : model.pieces(unit, "gradient")) {
        for (const float value : piece.values) {
          if (value != 1.0f) throw std::runtime_error("a wrong gradient");
        }
      }
    }
    model.synchronize();
    world.barrier("after the last step");
  };
  check_all_well(run_nccl_ranks({.ranks = 2, .timeout = std::chrono::seconds(5), .one_device = true}, work));
}

// Their plans differ, and so do the orders in which they launch.
TEST_CASE("stages_of_a_pipeline_have_the_weights_of_threads_on_the_cpu") {
  for (const std::size_t slices : {std::size_t{1}, std::size_t{2}}) {
    const pipeline::Cut cut{.slices = slices};
    pipeline::Values expected;
    launch({.ranks = 4}, [&](World& world) {
      const pipeline::Values weights = pipeline::Job(world, cut).train().weights;
      if (world.rank() == 0) expected = weights;
    });
    for (const bool over_sockets : {false, true}) {
      CAPTURE(over_sockets);
      check_all_well(
          run_nccl_ranks({.ranks = 4, .faults = {.delay_seed = 5}, .over_sockets = over_sockets}, [&](World& world) {
            if (pipeline::Job(world, cut).train().weights != expected) throw std::runtime_error("other weights");
          }));
    }
  }
}

TEST_CASE("stages_are_refused_where_launches_are_kept_in_order_by_events") {
  const std::vector<std::string> texts =
      run_nccl_ranks({.ranks = 2, .faults = {.orders_launches = false}}, [](World& world) {
        pipeline::Job(world, {.shape = {2, 4}, .layers = 2}).train();
      });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string& text = texts[rank];
    CAPTURE(text);
    CHECK(
        has(text, "forward messages: this NCCL keeps no order of launches itself, so launches are kept in one order"));
    CHECK(has(text, "a pipeline takes NCCL 2.26 or later"));
  }
}

TEST_CASE("a_stage_that_stalls_in_a_message_is_named_on_all_ranks_with_who_waits_for_it") {
  for (const bool over_sockets : {false, true}) {
    CAPTURE(over_sockets);
    const std::vector<std::string> texts = run_nccl_ranks(
        {.ranks = 3, .timeout = std::chrono::seconds(2), .over_sockets = over_sockets}, [](World& world) {
          pipeline::Cut cut{.shape = {3, 4}, .layers = 3};
          if (world.rank() == 0) {
            cut.at_pass = [&, passes = 0]() mutable {
              if (++passes == 3) std::this_thread::sleep_for(2 * world.timeout());
            };
          }
          pipeline::Job(world, cut).train();
        });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::string& text = texts[rank];
      CAPTURE(text);
      CHECK(has(text, "waited up to 2 s in broadcast \""));
      CHECK(has(text, "in broadcast \"x1\" (communicator forward messages over pipeline pairs from 0, #3) for rank 0"));
    }
  }
}

TEST_CASE("a_launch_that_goes_on_in_the_background_for_a_moment_is_not_slept_for") {
  int waits = 0;
  int slept = 0;
  check_all_well(run_nccl_ranks({.ranks = 2,
                                 .faults = {.polls_until_ready = 3},
                                 .look =
                                     [&](const FakeCounts& counts) {
                                       waits = counts.waits;
                                       slept = counts.slept;
                                     }},
                                [](World& world) { take_turns(world, 30); }));
  CHECK(waits >= 2 * 2 * 30);
  CHECK(slept < waits);  // on a loaded machine a moment may take long
}

TEST_CASE("communicators_are_connected_for_large_collectives_before_the_first_of_them") {
  int connected = 0;
  int late = 0;
  check_all_well(run_nccl_ranks({.ranks = 3,
                                 .look =
                                     [&](const FakeCounts& counts) {
                                       connected = counts.connected;
                                       late = counts.late;
                                     }},
                                [](World& world) {
                                  const auto gather = world.make_communicator("gather");
                                  const auto idle = world.make_communicator("idle");
                                  Stream stream = queued_stream("gather");
                                  Shared<std::byte> parts(3 * 65'536);
                                  gather->all_gather(stream, {.data = parts.data(), .shard = Bytes(65'536)});
                                  stream.synchronize();
                                }));
  CHECK(connected == 2 * 3);
  CHECK(late == 0);
}

TEST_CASE("a_communicator_of_the_programs_own_is_split_for_all_that_a_job_needs") {
  // It was made before NCCL_LAUNCH_ORDER_IMPLICIT was set, so this rank keeps the order, whatever NCCL says.
  std::atomic<int> beside = 0;
  FakeFaults faults{.delay_seed = 5, .beside = &beside};
  SUBCASE("at once") {}
  SUBCASE("while it does not block") { faults.splits_late = true; }
  faults_of_opened_nccl() = faults;
  FakeNccl nccl({});
  const NcclLibrary::Id id = nccl.unique_id();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      NcclLibrary::Handle own = nullptr;
      nccl.join(own, id, {.rank = rank, .ranks = 4, .name = "the program's"});
      try {
        for (int job = 0; job < 2; ++job) {
          tessera::launch({.nccl_communicator = own}, [&](World& world) {
            conformance::device_of_this_thread() = world.device();
            if (world.rank() != rank || world.size() != 4 || world.device() != Device::cuda(rank)) {
              throw std::runtime_error("ranks are not those of the communicator");
            }
            take_turns(world, 3);
            const Mesh mesh = world.mesh({{"replicate", 2}, {"shard", 2}});
            const auto pairs = world.make_communicator("pairs", {.group = mesh.group("shard")});
            Stream stream = queued_stream("pairs");
            Shared<std::byte> parts(2 * 32, static_cast<std::byte>(rank));
            pairs->all_gather(stream, {.data = parts.data(), .shard = Bytes(32), .label = "pairs"});
            stream.synchronize();
            if (parts[0] != static_cast<std::byte>(rank & ~1)) throw std::runtime_error("a wrong group");
          });
        }
      } catch (const std::exception& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
      nccl.destroy(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  check_all_well(texts);
  faults_of_opened_nccl() = {};
  CHECK(beside == 0);
  CHECK(nccl.open_handles() == 0);
  CHECK_THROWS_AS(tessera::launch({.ranks = 2, .nccl_communicator = &nccl}, [](World&) {}), UsageError);
}

TEST_CASE("the_watcher_asks_on_its_ranks_own_device") {
  const int before = emulated::queries_from_other_devices();
  check_all_well(
      run_nccl_ranks({.ranks = 3, .faults = {.delay_seed = 5}}, [](World& world) { take_turns(world, 30); }));
  CHECK(emulated::queries_from_other_devices() == before);
}

TEST_CASE("nccls_own_sums_are_near_and_convert_accumulate_and_divide") {
  const auto sum_of = [](World& world, DType wire) {
    const auto reduce = world.make_communicator("reduce");
    Stream stream = queued_stream("reduce");
    constexpr std::size_t shard = 131;
    const auto ranks = static_cast<std::size_t>(world.size());
    Shared<std::byte> data(ranks * shard * size_of(wire).count());
    for (std::size_t i = 0; i < ranks * shard; ++i) {
      const float value = std::abs(test_value(world.rank(), i));
      if (wire == DType::bf16) conformance::store<bf16>(data, i, value);
      if (wire == DType::fp32) conformance::store<float>(data, i, value);
    }
    Shared<float> result(shard, 8.0f);
    reduce->reduce_scatter(stream, {.data = data.data(),
                                    .wire = wire,
                                    .result = result.data(),
                                    .shard_elements = shard,
                                    .accumulate = kernels::Accumulate::sum,
                                    .divisor = 4.0f,
                                    .label = "fast"});
    stream.synchronize();
    for (std::size_t i = 0; i < shard; ++i) {
      float expected = 8.0f;
      for (int rank = 0; rank < world.size(); ++rank) {
        expected += std::abs(test_value(rank, static_cast<std::size_t>(world.rank()) * shard + i));
      }
      expected /= 4.0f;
      if (std::abs(result[i] - expected) > 0.02f * expected) throw std::runtime_error("a sum is not near");
    }
  };
  for (const DType wire : {DType::fp32, DType::bf16}) {
    check_all_well(run_nccl_ranks({.ranks = 3, .options = {.sums = SumChoice::fast, .staging = Bytes(4096)}},
                                  [&](World& world) { sum_of(world, wire); }));
  }
}

TEST_CASE("nccls_own_sums_refuse_what_their_staging_does_not_hold") {
  const auto texts =
      run_nccl_ranks({.ranks = 2, .options = {.sums = SumChoice::fast, .staging = Bytes(4096)}}, [](World& world) {
        const auto reduce = world.make_communicator("reduce");
        Stream stream = queued_stream("reduce");
        Shared<float> data(4096);
        Shared<float> result(2048);
        reduce->reduce_scatter(stream, {.data = reinterpret_cast<const std::byte*>(data.data()),
                                        .result = result.data(),
                                        .shard_elements = 2048,
                                        .label = "large"});
        stream.synchronize();
      });
  CHECK((has(texts[0], "8192 bytes needs as much staging") || has(texts[1], "8192 bytes needs as much staging")));
}

TEST_CASE("nccls_own_sums_refuse_to_go_on_term_by_term_and_name_the_remedy") {
  const auto texts = run_nccl_ranks({.ranks = 2, .options = {.sums = SumChoice::fast}}, [](World& world) {
    const auto reduce = world.make_communicator("reduce");
    Stream stream = queued_stream("reduce");
    Shared<float> data(14);
    Shared<float> result(7);
    reduce->reduce_scatter(stream, {.data = reinterpret_cast<const std::byte*>(data.data()),
                                    .result = result.data(),
                                    .shard_elements = 7,
                                    .accumulate = kernels::Accumulate::terms,
                                    .label = "granules"});
    stream.synchronize();
  });
  for (const std::string& text : texts) {
    CHECK(has(text, "reduce-scatter \"granules\""));
    CHECK(has(text, "take SumChoice::ranked (--sums ranked)"));
  }
}

TEST_CASE("a_device_that_hangs_is_named_with_its_collective_on_every_rank") {
  const auto texts = run_nccl_ranks(
      {.ranks = 3, .timeout = std::chrono::milliseconds(500), .faults = {.rank = 1, .launch = 9, .hangs = true}},
      [](World& world) { take_turns(world, 20); });
  for (const std::string& text : texts) {
    CHECK((has(text, "did not end within 0.5 s") || has(text, "waited up to 0.5 s")));
    CHECK(has(text, "blocks."));
  }
}

// Its host says so, and all have come to the collective long ago.
TEST_CASE("a_rank_whose_device_computes_long_is_waited_for_while_it_makes_progress") {
  for (const bool over_sockets : {false, true}) {
    CAPTURE(over_sockets);
    const NcclRanks how{.ranks = 3,
                        .timeout = std::chrono::seconds(1),
                        .faults = {.rank = 1, .launch = 9, .computes = std::chrono::seconds(5)},
                        .over_sockets = over_sockets};
    check_all_well(run_nccl_ranks(how, [](World& world) {
      const std::jthread progress([&](const std::stop_token& stop) {
        while (world.rank() == 1 && !stop.stop_requested()) {
          world.note_progress();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      });
      take_turns(world, 20);
    }));
  }
}

TEST_CASE("a_device_that_starts_slowly_is_no_late_rank") {
  check_all_well(run_nccl_ranks(
      {.ranks = 3, .timeout = std::chrono::seconds(1), .faults = {.starts_after = std::chrono::milliseconds(4500)}},
      [](World& world) { take_turns(world, 1); }));
}

TEST_CASE("an_error_that_nccl_reports_later_ends_the_job_and_names_rank_and_collective") {
  const auto texts = run_nccl_ranks({.ranks = 3, .faults = {.rank = 2, .launch = 7, .hangs = true, .errors = true}},
                                    [](World& world) { take_turns(world, 20); });
  for (const std::string& text : texts) {
    CHECK(has(text, "rank 2 on cuda:2, in "));
    CHECK(has(text, "blocks."));
    CHECK(has(text, "remote process exited"));
  }
}

TEST_CASE("a_call_that_nccl_refuses_ends_the_job_and_names_rank_and_collective") {
  const auto texts = run_nccl_ranks({.ranks = 3, .faults = {.rank = 0, .launch = 5, .refuses = true}},
                                    [](World& world) { take_turns(world, 20); });
  for (const std::string& text : texts) {
    CHECK(has(text, "rank 0 on cuda:0, in "));
    CHECK(has(text, "ncclGroupEnd failed: unhandled system error"));
  }
}

TEST_CASE("ranks_that_cannot_connect_say_which_communicator_could_not_be_made") {
  const auto texts = run_nccl_ranks({.ranks = 2, .faults = {.rank = 1, .launch = 1, .refuses = true}},
                                    [](World& world) { world.make_communicator("gather"); });
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(has(text, "rank 1 on cuda:1, in make_communicator \"gather\""));
  }
}

TEST_CASE("arenas_are_zero_and_known_to_communicators_made_before_and_after") {
  check_all_well(run_nccl_ranks({.ranks = 2}, [](World& world) {
    const auto before = world.make_communicator("gather");
    Arena arena = world.make_arena(Bytes(10'000));
    const auto after = world.make_communicator("reduce");
    if (arena.size() != Bytes(12'288)) throw std::runtime_error("whole pages");
    Stream stream = queued_stream("gather");
    Shared<std::byte> seen(10'000, std::byte{1});
    stream.submit([&] { device::cuda_queue(stream).copy(seen.data(), arena.data(), Bytes(seen.size())); });
    before->all_gather(stream, {.data = arena.data(), .shard = Bytes(5'000), .label = "arena"});
    stream.synchronize();
    for (const std::byte each : seen) {
      if (each != std::byte{0}) throw std::runtime_error("an arena is zero");
    }
  }));
}

TEST_CASE("ranks_of_a_group_that_cannot_connect_are_named_by_their_numbers_in_the_job") {
  const auto texts =
      run_nccl_ranks({.ranks = 4, .faults = {.rank = 1, .launch = 1, .refuses = true}}, [](World& world) {
        const Mesh mesh = world.mesh({{"replicate", 2}, {"shard", 2}});
        world.make_communicator("gather", {.group = mesh.group("shard")});
      });
  for (const std::string& text : texts) {
    CHECK((has(text, "rank 1 on cuda:1, in make_communicator") || has(text, "rank 3 on cuda:3, in make_communicator")));
  }
}

TEST_CASE("host_memory_of_a_group_goes_over_its_own_channel") {
  check_all_well(run_nccl_ranks({.ranks = 4}, [](World& world) {
    const Group column = world.mesh({{"replicate", 2}, {"shard", 2}}).group("replicate");
    for (const bool host_memory : {true, false}) {
      const auto parts = world.make_communicator("parts", {.host_memory = host_memory, .group = column});
      Stream host(Device::cpu(), {.name = "host"});
      std::vector<int> ranks(2, -1);
      ranks[static_cast<std::size_t>(parts->rank())] = world.rank();
      parts->all_gather(
          host, {.data = reinterpret_cast<std::byte*>(ranks.data()), .shard = Bytes(sizeof(int)), .label = "ranks"});
      host.synchronize();
      if (ranks != column.ranks()) throw std::runtime_error("not the group's ranks");
    }
  }));
}

TEST_CASE("memory_of_the_host_goes_over_the_control_channel_when_the_stream_is_the_cpus") {
  check_all_well(run_nccl_ranks({.ranks = 3}, [](World& world) {
    const auto checkpoint = world.make_communicator("checkpoint");
    Stream host(Device::cpu(), {.name = "host"});
    Stream device = queued_stream("device");
    std::vector<std::byte> data(3 * 1000, static_cast<std::byte>(world.rank()));
    checkpoint->all_gather(host, {.data = data.data(), .shard = Bytes(1000), .label = "parts"});
    host.synchronize();
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (data[i] != static_cast<std::byte>(i / 1000)) throw std::runtime_error("a part is not its rank's");
    }
    checkpoint->barrier(device, "end");
    device.synchronize();
  }));
}

// 70,000 bytes of each rank are above what a control channel is asked to carry; 6,000,000 go in rounds.
TEST_CASE("gathers_of_much_host_memory_hold_every_ranks_bytes") {
  for (const int ranks : {1, 3}) {
    check_all_well(run_nccl_ranks({.ranks = ranks}, [](World& world) {
      for (const std::size_t count : {std::size_t{70'000}, std::size_t{6'000'000}, std::size_t{3}}) {
        const auto value = [](int rank, std::size_t i) {
          return static_cast<std::byte>(i * 7 + i / 251 + 31u * static_cast<unsigned>(rank));
        };
        std::vector<std::byte> mine(count);
        for (std::size_t i = 0; i < count; ++i) mine[i] = value(world.rank(), i);
        const std::vector<std::byte> all = world.gather(mine, "much");
        if (all.size() != count * static_cast<std::size_t>(world.size())) throw std::runtime_error("not every rank's");
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i] != value(static_cast<int>(i / count), i % count)) throw std::runtime_error("not its rank's byte");
        }
      }
    }));
  }
}

TEST_CASE("gathers_of_much_host_memory_go_over_the_devices") {
  const auto refused = [](std::size_t count) {
    return run_nccl_ranks({.ranks = 2, .faults = {.rank = 1, .launch = 1, .refuses = true}},
                          [&](World& world) { world.gather(std::vector<std::byte>(count), "much"); });
  };
  for (const std::string& text : refused(65'536)) CHECK(has(text, "make_communicator \"control, over devices\""));
  check_all_well(refused(65'535));
}

// A communicator over the devices is made for what a save brings to other ranks, once.
TEST_CASE("saves_bring_elements_to_other_ranks_over_the_devices") {
  const auto connected = [](int saves, bool in_background) {
    const TemporaryFolder folder;
    int count = 0;
    const NcclRanks how{.ranks = 2, .look = [&](const FakeCounts& counts) { count = counts.connected; }};
    check_all_well(run_nccl_ranks(how, [&](World& world) {
      Parameter weight({1000}, Initial::ones());
      const NamedParameter parameters[] = {{"weight", &weight}};
      FullyShard model(world, {.checkpointing = Checkpointing::background});
      model.add_unit("unit", parameters);
      model.finalize(AdamW{});
      Checkpointer checkpoints(model, {.directory = folder.path()});
      for (int save = 1; save <= saves; ++save) {
        const TrainingProgress progress{.step = static_cast<std::uint64_t>(save)};
        in_background ? checkpoints.save_async(progress) : checkpoints.save(progress);
      }
      if (saves > 0) checkpoints.load(checkpoints.latest()->path);
    }));
    return count;
  };
  const int without = connected(0, false);
  for (const bool in_background : {false, true}) {
    CHECK(connected(1, in_background) == without + 2);
    CHECK(connected(2, in_background) == without + 2);
  }
}

TEST_CASE("a_launch_of_threads_over_nccl_has_ranks_with_devices_of_their_own") {
  std::atomic<int> devices = 0;
  launch({.ranks = 3, .device = DeviceChoice::cuda, .backend = BackendChoice::nccl}, [&](World& world) {
    if (world.backend_name() != "nccl" || world.size() != 3)
      throw std::runtime_error("not the ranks that were asked for");
    if (world.device() == Device::cuda(world.rank())) ++devices;
    if (world.sum(1.0 + world.rank(), "sum") != 6.0) throw std::runtime_error("not the sum");
  });
  CHECK(devices == 3);
}

TEST_CASE("a_launch_of_threads_over_nccl_ends_with_the_first_cause") {
  try {
    launch({.ranks = 4, .device = DeviceChoice::cuda, .backend = BackendChoice::nccl}, [&](World& world) {
      if (world.rank() == 2) throw UsageError("rank two does not like it");
      world.barrier("never");
    });
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()) == "rank 2: rank two does not like it");
  }
}

TEST_CASE("more_ranks_than_devices_need_an_nccl_that_shares_them") {
  faults_of_opened_nccl().shares_devices = false;
  const std::string text = tests::error_text<UnavailableError>(
      [] { launch({.ranks = 5, .device = DeviceChoice::cuda, .backend = BackendChoice::nccl}, [](World&) {}); });
  faults_of_opened_nccl() = {};
  CHECK(has(text, "--backend nccl: 5 ranks for 4 CUDA devices, and the tests' NCCL gives each rank one of its own"));
}

TEST_CASE("sums_of_a_launch_are_ranked_unless_they_are_asked_to_be_fast") {
  for (const SumChoice sums : {SumChoice::ranked, SumChoice::fast}) {
    const LaunchOptions options{.ranks = 3, .device = DeviceChoice::cuda, .backend = BackendChoice::nccl, .sums = sums};
    launch(options, [&](World& world) {
      const CollectiveStaging expected =
          sums == SumChoice::fast ? CollectiveStaging::results : CollectiveStaging::parts;
      if (world.staging() != expected) throw std::runtime_error("the plan would have other staging");
    });
  }
}
