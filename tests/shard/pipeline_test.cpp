// Micro-batches on their way through the stages of a pipeline: one rank's losses, and the same bits by every schedule.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../extent.hpp"
#include "pipeline.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "toy_model.hpp"

namespace pipeline_test {

using namespace pipeline;

Trained trained(const Cut& cut, std::size_t data) {
  Trained result;
  launch({.ranks = static_cast<int>(cut.ranks(data))}, [&](World& world) {
    const Trained mine = pipeline::Job(world, cut).train();
    if (world.rank() == 0) result = mine;
  });
  return result;
}

// All layers' weights and norms, whichever stage has them; the norms make up that of the whole gradient.
void check_layers(const Trained& parted, const Trained& expected, double tolerance) {
  REQUIRE(parted.weights.size() == expected.weights.size());
  for (std::size_t i = 0; i < parted.weights.size(); ++i)
    CHECK(parted.weights[i] == doctest::Approx(expected.weights[i]).epsilon(tolerance));
  REQUIRE(parted.layer_norms.size() == expected.layer_norms.size());
  double squares = 0;
  for (std::size_t layer = 0; layer < parted.layer_norms.size(); ++layer) {
    CHECK(parted.layer_norms[layer] == doctest::Approx(expected.layer_norms[layer]).epsilon(tolerance));
    squares += parted.layer_norms[layer] * parted.layer_norms[layer];
  }
  CHECK(std::sqrt(squares) == doctest::Approx(parted.norms.back()).epsilon(1e-5));
}

constexpr std::size_t layers = 12;  // of one cut into 1, 2, 3, 4 or 6 parts

TEST_CASE("every_schedule_trains_as_one_rank_does_with_the_bits_of_every_other") {
  struct Mesh {
    std::size_t stages, data;
  };
  const std::vector<Mesh> meshes = !tests::reduced()
                                       ? std::vector<Mesh>{{1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 1}, {4, 2}}
                                       : std::vector<Mesh>{{2, 2}, {3, 1}};
  for (const auto& [stages, data] : meshes) {
    Cut cut{.shape = {stages, 2 * stages}, .layers = layers, .steps = tests::sanitized ? 5 : 20};
    Cut alone = cut;
    alone.shape = {1, 2 * stages * data};
    const Trained expected = trained(alone, 1);
    Trained first;
    for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
      for (const ScheduleKind kind :
           {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
        cut.strategy = strategy;
        cut.kind = kind;
        cut.shape.chunks = kind == ScheduleKind::interleaved && stages > 1 ? 2 : 1;
        const Trained parted = trained(cut, data);
        REQUIRE(parted.losses.size() == expected.losses.size());
        if (first.losses.empty()) first = parted;
        CHECK_MESSAGE(parted == first, to_string(kind));
        if (kind != ScheduleKind::gpipe && stages == 2) {  // sums of two halves are the whole
          Cut sliced = cut;
          sliced.slices = 2;
          CHECK_MESSAGE(trained(sliced, data) == first, "slices, " << to_string(kind));
        }
        // The evaluation, behind the steps, is of each rank's first micro-batch.
        for (std::size_t step = 0; step < parted.losses.size() - (data > 1 ? 1 : 0); ++step)
          CHECK(parted.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-5));
        for (std::size_t step = 0; step < parted.norms.size(); ++step)
          CHECK(parted.norms[step] == doctest::Approx(expected.norms[step]).epsilon(1e-4));
        check_layers(parted, expected, 1e-3);
      }
    }
    if (!tests::sanitized) CHECK(first.losses.front() > 1.1 * first.losses[cut.steps - 1]);
    CHECK(first.norms.front() > 0.1);  // is clipped
  }
}

// Several micro-batches are on their way, and each has its own calls made again.
TEST_CASE("units_may_recompute") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved}) {
    Cut cut{.shape = {2, 4, kind == ScheduleKind::interleaved ? std::size_t{2} : std::size_t{1}}, .kind = kind};
    cut.layers = 8;
    const Trained kept = trained(cut, 2);
    cut.recompute = true;
    CHECK_MESSAGE(trained(cut, 2) == kept, to_string(kind));
    cut.slices = 2;
    CHECK_MESSAGE(trained(cut, 2) == kept, to_string(kind));
  }
}

// Layers of the first and the last stage are frozen for two steps, with the bits of what stays; states go on.
TEST_CASE("what_stages_train_may_change_between_steps") {
  const auto run = [](const Cut& cut, std::size_t data, const std::vector<bool>& phases) {
    std::vector<Trained> result;
    launch({.ranks = static_cast<int>(cut.ranks(data))}, [&](World& world) {
      pipeline::Job job(world, cut);
      for (const bool frozen : phases) {
        const std::vector<const pipeline::Layer*> all = job.all_layers();
        for (const std::size_t layer : {0, 7}) const_cast<pipeline::Layer*>(all[layer])->weight->set_frozen(frozen);
        job.pipeline->model().recompile();
        const Trained trained = job.train();
        if (world.rank() == 0) result.push_back(trained);
        job.cut.first_step += 2, job.cut.steps += 2;
      }
    });
    return result;
  };
  Cut cut{.shape = {2, 6}, .layers = 8, .steps = 2, .momentum = 0.5f};
  const std::vector<Trained> parted = run(cut, 2, {false, true, false});
  Cut at_once = cut;
  at_once.steps = 4;
  CHECK(run(cut, 2, {false, false})[1].weights == trained(at_once, 2).weights);
  cut.shape = {1, 12};
  const std::vector<Trained> expected = run(cut, 1, {false, true, false});
  for (std::size_t phase = 0; phase < 3; ++phase) {
    for (std::size_t step = 0; step < 2; ++step)
      CHECK(parted[phase].losses[step] == doctest::Approx(expected[phase].losses[step]).epsilon(1e-5));
    check_layers(parted[phase], expected[phase], 1e-3);
  }
  const auto layer = [&](std::size_t phase, std::size_t l) {
    return Values(&parted[phase].weights[l * size], &parted[phase].weights[l * size] + size);
  };
  for (const std::size_t l : {0, 7}) CHECK((layer(0, l) == layer(1, l) && layer(1, l) != layer(2, l)));
  CHECK(layer(0, 3) != layer(1, 3));
}

TEST_CASE("tied_parameters_stay_equal_and_count_once") {
  Cut alone{.shape = {1, 12}, .layers = 6, .steps = 10, .tied = true};
  const Trained expected = trained(alone, 1);
  for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
    const Trained parted = trained({.shape = {3, 6}, .layers = 6, .strategy = strategy, .steps = 10, .tied = true}, 2);
    for (std::size_t i = 0; i < size; ++i) CHECK(parted.weights[i] == parted.weights[5 * size + i]);
    for (std::size_t step = 0; step < parted.norms.size(); ++step)
      CHECK(parted.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-5));
    for (std::size_t step = 0; step < parted.norms.size(); ++step)
      CHECK(parted.norms[step] == doctest::Approx(expected.norms[step]).epsilon(1e-5));
    CHECK(parted.layer_norms.back() == 0);  // once, with the first stage's
    CHECK(parted.layer_norms.front() == doctest::Approx(expected.layer_norms.front()).epsilon(1e-4));
    double squares = 0;
    for (const double norm : parted.layer_norms) squares += norm * norm;
    CHECK(std::sqrt(squares) == doctest::Approx(parted.norms.back()).epsilon(1e-5));
  }
}

// Nothing that the first stage waits for may wait for the sum of the tied gradients, which the last one has much
// earlier.
TEST_CASE("tied_stages_train_with_one_micro_batch") {
  const Trained expected = trained({.shape = {1, 2}, .layers = 10, .tied = true}, 1);
  for (const Strategy strategy : {Strategy::fsdp, Strategy::zero2, Strategy::ddp}) {
    const Trained parted = trained({.shape = {2, 1}, .layers = 10, .strategy = strategy, .tied = true}, 2);
    for (std::size_t step = 0; step < parted.norms.size(); ++step)
      CHECK(parted.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-5));
    for (std::size_t i = 0; i < size; ++i) CHECK(parted.weights[i] == parted.weights[9 * size + i]);
  }
}

// The sum is an operation of the plan, in its staging; who looks at gradients sees what both units are updated by.
TEST_CASE("hooks_see_the_sum_of_tied_gradients") {
  launch({.ranks = 6}, [](World& world) {
    std::vector<float> seen(size);
    const GradientHook hook = [&](const ReducedGradient& gradient) {
      if (gradient.unit.name() != "layer0") return;
      for (const ParameterPiece& piece : gradient.pieces)
        kernels::copy(gradient.stream, &seen[piece.first], piece.values.data(), Bytes(piece.values.size_bytes()));
    };
    pipeline::Job job(world, {.shape = {3, 6}, .layers = 6, .steps = 1, .tied = true, .hook = hook});
    job.train();
    const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(seen)), "gradients");
    const auto of = [&](std::size_t rank) {
      return std::span(all).subspan(rank * size * sizeof(float), size * sizeof(float));
    };
    for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) CHECK(std::ranges::equal(of(rank), of(rank + 4)));
    CHECK(std::ranges::any_of(of(0), [](std::byte each) { return each != std::byte{0}; }));
    const plan::Plan& plan = job.pipeline->model().plan();
    const auto sums = [](const plan::Segment& segment) {
      return std::ranges::count(segment.operations, plan::OperationKind::sum_tied, &plan::Operation::kind);
    };
    const bool is_end = job.pipeline->stage() != 1;
    CHECK(sums(plan.segments[plan.find(plan::SegmentKind::only).value()]) == (is_end ? 1 : 0));
  });
}

// Saved on one mesh, loaded on another, and saved there again, it has the same files; and the run goes on.
TEST_CASE("a_checkpoint_of_one_mesh_is_that_of_every_other") {
  const TemporaryFolder folder;
  const Cut whole{.shape = {2, 6}, .layers = 6, .steps = 4, .tied = true, .momentum = 0.5f};
  const Trained expected = trained(whole, 2);
  std::map<std::string, std::string> saved;
  for (const auto& [stages, data] : {std::pair(2, 2), {1, 4}, {1, 1}, {3, 1}, {2, 2}, {3, 2}}) {
    launch({.ranks = stages * data}, [&, stages = stages, data = data](World& world) {
      Cut cut = whole;
      cut.shape = {static_cast<std::size_t>(stages), static_cast<std::size_t>(12 / data)};
      const std::filesystem::path written = folder / fmt::format("{} x {}", stages, data);
      if (saved.empty()) {
        cut.steps = 2;
        pipeline::Job job(world, cut);
        job.train();
        Checkpointer(job.pipeline->model(), {.directory = folder / "first"}).save({.step = 2});
        return;
      }
      cut.first_step = 2;
      pipeline::Job job(world, cut);
      Checkpointer checkpoints(job.pipeline->model(), {.directory = written});
      checkpoints.load(folder / "first" / checkpoint_name(2));
      checkpoints.save({.step = 2});
      CHECK(files_in(written / checkpoint_name(2)) == saved);
      const Trained on = job.train();
      for (std::size_t step = 0; step < 2; ++step) {
        CHECK(on.losses[step] == doctest::Approx(expected.losses[2 + step]).epsilon(1e-5));
        CHECK((stages != 2 || on.losses[step] == expected.losses[2 + step]));
      }
      for (std::size_t i = 0; stages == 2 && i < size * whole.layers; ++i) CHECK(on.weights[i] == expected.weights[i]);
    });
    if (saved.empty()) saved = files_in(folder / "first" / checkpoint_name(2));
  }
  CHECK(saved.size() == 4);
}

// Every rank judges all stages, of which one has a buffer; another's has none.
TEST_CASE("a_buffer_of_a_stage_is_the_same_on_its_ranks_or_is_not_saved") {
  const TemporaryFolder folder;
  launch({.ranks = 4}, [&](World& world) {
    pipeline::Job job(world, {.layers = 2, .buffered = 1});
    Checkpointer checkpoints(job.pipeline->model(), {.directory = folder / "run"});
    checkpoints.save({.step = 1});
    if (world.rank() == 3) job.pipeline->model().buffer(*job.part(1).layers[0].seen)[1] = 5;
    CHECK_THROWS_WITH_AS(checkpoints.save({.step = 2}),
                         doctest::Contains("buffer layer1.seen has other values on rank 3 than on rank 2"), UsageError);
    if (world.rank() == 2) job.pipeline->model().buffer(*job.part(1).layers[0].seen)[1] = 5;
    checkpoints.save({.step = 2});
  });
  CHECK(list_checkpoints(folder / "run").size() == 2);
}

TEST_CASE("what_passes_may_be_of_16_bits") {
  const Cut cut{.shape = {3, 6}, .layers = layers, .type = DType::bf16};
  Cut gpipe = cut, whole = cut;
  gpipe.kind = ScheduleKind::gpipe, whole.type = DType::fp32;
  const Trained parted = trained(cut, 1);
  CHECK(parted == trained(gpipe, 1));
  CHECK_FALSE(parted == trained(whole, 1));
  CHECK(parted.losses.back() == doctest::Approx(trained(whole, 1).losses.back()).epsilon(0.02));
}

TEST_CASE("units_are_cut_so_that_the_slowest_part_is_quickest") {
  const std::vector<double> units = {1, 4, 4, 4, 4, 3};
  CHECK(cut_evenly(units, 1).begins == std::vector<std::size_t>{0});
  CHECK(cut_evenly(units, 2).begins == std::vector<std::size_t>{0, 3});
  CHECK(cut_evenly(units, 3).begins == std::vector<std::size_t>{0, 2, 4});
  CHECK(cut_evenly(units, 3).imbalance == doctest::Approx(1.2));
  CHECK(cut_evenly(units, 6).begins == std::vector<std::size_t>{0, 1, 2, 3, 4, 5});
  CHECK_THROWS_WITH_AS(cut_evenly(units, 7), doctest::Contains("choose 1 to 6"), UsageError);
}

// A list of one's own: each micro-batch by itself.
TEST_CASE("a_schedule_of_ones_own_is_a_list_like_any_other") {
  using enum plan::WindowKind;
  launch({.ranks = 2}, [](World& world) {
    Cut cut{.layers = 2};
    const Trained expected = pipeline::Job(world, cut).train();
    cut.own = plan::Schedule(2, {{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}});
    CHECK(pipeline::Job(world, cut).train() == expected);
  });
}

// The plan holds what micro-batches on their way take, in each stage as many as the schedule says.
TEST_CASE("activations_in_flight_are_in_the_plan") {
  launch({.ranks = 3}, [](World& world) {
    for (const auto& [kind, held] : {std::pair(ScheduleKind::gpipe, std::size_t{6}),
                                     std::pair(ScheduleKind::one_f_one_b, 3 - static_cast<std::size_t>(world.rank())),
                                     std::pair(ScheduleKind::zb_h1, std::size_t{3})}) {
      pipeline::Job job(world, {.shape = {3, 6}, .kind = kind, .layers = 3});
      const std::size_t message = 512, layer = 512;
      CHECK(job.pipeline->model().activation_memory().size() == held * (message + layer) + 3 * message);
      std::size_t messages = 0;
      for (const plan::Buffer& buffer : job.pipeline->model().plan().buffers)
        messages += buffer.name.find("dx") != buffer.name.npos || buffer.name.find(".x") != buffer.name.npos ? 1 : 0;
      CHECK(messages == (world.rank() == 1 ? 4 : 2));
    }
  });
}

TEST_CASE("what_is_no_pipeline_is_refused") {
  const auto check = [](const char* text, const Cut& cut) {
    const std::string failure =
        toy::failure_of(static_cast<int>(cut.shape.stages), [&](World& world) { pipeline::Job(world, cut); });
    CHECK_MESSAGE(toy::contains(failure, text), failure);
  };
  using enum plan::WindowKind;
  check("stage 1: backward of micro-batch 0 through its chunk 0: is missing",
        {.own = plan::Schedule{{{forward, 0}, {backward, 0}}, {{forward, 0}}}, .shape = {2, 1}});
  check("unit layer0 recomputes, and its backward pass is in two windows",
        {.kind = ScheduleKind::zb_h1, .recompute = true});
  check("unit layer1 is tied: a unit of the last stage may be", {.shape = {3, 3}, .layers = 3, .lost = 1});
  check("roles stage 0 and stage 1 have a unit layer0 each", {.shape = {2, 2}, .layers = 2, .same_names = true});
  check("unit layer2 is tied: a unit of the last stage may be", {.shape = {3, 3}, .layers = 3, .lost = 2});
  // Each stage sends ahead of the other as far as buffers go, and then nobody can.
  plan::Schedule ahead(2);
  for (std::size_t m = 0; m < 6; ++m) ahead[0].push_back({forward, m});
  for (std::size_t m = 0; m < 6; ++m) ahead[0].push_back({backward, m});
  for (std::size_t m = 0; m < 6; ++m) ahead[1].insert(ahead[1].end(), {{forward, m}, {backward, m}});
  check("wait for each other", {.own = ahead, .shape = {2, 6}, .buffers = 1});
  launch({.ranks = 2}, [](World& world) {
    pipeline::Job job(world, {.layers = 2});
    job.part(0).layers[0].weight->set_frozen(world.rank() == 0);
    CHECK_THROWS_WITH_AS(job.pipeline->model().recompile(), doctest::Contains("layer0.weight"), CommunicationError);
    pipeline::Layer foreign;
    CHECK_THROWS_WITH_AS(job.pipeline->model().whole(*foreign.weight), doctest::Contains("does not belong"),
                         UsageError);
  });
}

TEST_CASE("a_unit_is_tied_where_there_are_stages_alone") {
  launch({}, [](World& world) {
    pipeline::Layer layer;
    FullyShard model(world, {});
    model.add(layer, {.name = "net", .tied = true});
    CHECK_THROWS_WITH_AS(model.finalize(AdamW{}), doctest::Contains("leave UnitOptions::tied out"), UsageError);
    std::vector<std::unique_ptr<PipelinePart>> parts;
    parts.push_back(std::make_unique<pipeline::Part>(Cut{.shape = {1, 1}}, 0));
    const plan::ScheduleShape shape{1, 1};
    CHECK_THROWS_WITH_AS(
        Pipeline(world, {}, {.schedule = plan::schedule(ScheduleKind::gpipe, shape), .shape = shape}, std::move(parts)),
        doctest::Contains("needs FullyShardOptions::mesh"), UsageError);
  });
}

TEST_CASE("what_takes_all_ranks_of_a_job_is_refused_to_roles") {
  const auto check = [](const char* text, FullyShardOptions options) {
    const std::string failure = toy::failure_of(2, [&](World& world) {
      pipeline::Layer layer;
      FullyShard model(world, options);
      model.add(layer, "net");
      ModelRole role{"only", &model, AdamW{}};
      finalize_roles({&role, 1});
    });
    CHECK_MESSAGE(toy::contains(failure, text), failure);
  };
  check("need FullyShardOptions::mesh with 1 places along pipeline", {});
  const plan::MeshShape mesh{{Axis::pipeline, 1}, {Axis::replicate, 2}};
  check("has outer steps", {.mesh = mesh, .outer = {.every = 1}});
}

}  // namespace pipeline_test
