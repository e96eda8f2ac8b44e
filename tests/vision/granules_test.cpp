// Batch norms of a model with granules: weights and running moments have the same bits on any number of ranks.
#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/vision/model.hpp"
#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace vision_granules_test {

namespace {

using tessera::FullyShard;
using tessera::FullyShardOptions;
using tessera::Strategy;
using tessera::World;

constexpr std::size_t granules = 6;
constexpr std::size_t images = 3;  // of a granule

struct Run {
  FullyShardOptions options = {.granules = granules};
  int ranks = 1;
  int steps = 4;
  models::VisionShape shape = {.kind = models::VisionModelKind::resnet18,
                               .image = {.height = 6, .width = 5, .channels = 2},
                               .classes = 4,
                               .width = 2,
                               .granule_norms = true};
  bool recompute = false;
  std::vector<std::size_t> of_steps = {};  // granules that have images, by step in turn; none: all have
};

std::string describe(const Run& run) {
  return to_string(run.options.strategy, run.options.sharding) + " ranks " + std::to_string(run.ranks) + " replicas " +
         std::to_string(run.options.replicas);
}

// Gives each unit its options.
struct UnitsOf {
  void add(tessera::Module& module, std::string_view name) {
    model.add(module, tessera::UnitOptions{.name = std::string(name), .recompute = recompute && name != "fc"});
  }
  FullyShard& model;
  bool recompute;
};

// Each granule has images of its own, whoever computes it.
template <typename T>
class Net {
 public:
  Net(World& world, const Run& run)
      : network_(run.shape),
        memory_(tessera::Device::cpu(), tessera::Bytes(1u << 20)),
        shape_(run.shape),
        model(world, run.options) {
    UnitsOf units{model, run.recompute};
    network_.add_units(units);
    network_.use({memory_.data(), memory_.size().count()});
    model.finalize(tessera::Sgd{.learning_rate = 0.05f, .momentum = 0.9f, .clip_norm = 0.5f});
  }

  void train(int step, std::size_t granule) {
    const auto seed = static_cast<unsigned>(100 * static_cast<std::size_t>(step) + granule);
    const std::vector<float> pixels = random_floats(images * shape_.image.elements(), seed);
    std::vector<std::int32_t> labels(images);
    for (std::size_t i = 0; i < images; ++i) labels[i] = static_cast<std::int32_t>((seed + i) % shape_.classes);
    float loss = 0.0f;
    network_.train(model, {pixels.data(), images, shape_.image.elements()}, {.targets = {labels}, .loss = &loss});
    model.synchronize();
  }

 private:
  models::VisionModel<T> network_;
  tessera::Arena memory_;
  const models::VisionShape& shape_;

 public:
  FullyShard model;
};

// Bits by name; a buffer has those of every rank, by name and rank.
using Values = std::map<std::string, std::vector<std::uint32_t>>;
struct Result {
  Values weights;
  Values buffers;
};

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

void collect(FullyShard& model, Result& result, std::mutex& mutex) {
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for (const tessera::Parameter* parameter : model.unit(u).parameters()) {
      const std::vector<float> whole = model.whole(*parameter);
      const std::lock_guard lock(mutex);
      result.weights[parameter->name()] = bits_of(whole);
    }
    for (const tessera::Buffer* buffer : model.unit(u).buffers()) {
      const std::vector<std::uint32_t> bits = bits_of(model.buffer(*buffer));
      const std::lock_guard lock(mutex);
      result.buffers[buffer->name() + " of rank " + std::to_string(model.world().rank())] = bits;
    }
  }
}

template <typename T>
void train_step(Net<T>& net, const Run& run, int step) {
  const tessera::Granules mine = net.model.granules();
  const std::size_t with_images =
      run.of_steps.empty() ? mine.total : run.of_steps[static_cast<std::size_t>(step) % run.of_steps.size()];
  std::size_t round = 0;
  for (; round < mine.mine() && mine.number(round) < with_images; ++round) net.train(step, mine.number(round));
  round == 0 ? net.model.skip_step() : net.model.update();
}

template <typename T>
Result train(const Run& run) {
  Result result;
  std::mutex mutex;
  tessera::launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20), .threads = 1}, [&](World& world) {
    Net<T> net(world, run);
    for (int step = 0; step < run.steps; ++step) train_step(net, run, step);
    collect(net.model, result, mutex);
  });
  return result;
}

void check_same(const Result& result, const Result& alone) {
  CHECK(result.weights == alone.weights);
  for (const auto& each : result.buffers) {
    const std::string& name = each.first;
    CAPTURE(name);
    CHECK(each.second == alone.buffers.at(name.substr(0, name.rfind(" of rank ")) + " of rank 0"));
  }
}

// Ranks own places in another order than that of their numbers where there are replicas.
template <typename T>
void check_any_ranks(const Run& alone) {
  const Result reference = train<T>(alone);
  REQUIRE(reference.buffers.size() == 40);  // of 20 norms
  for (const int ranks : {2, 3, 4, 5, 6}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      Run run = alone;
      run.ranks = ranks;
      run.options.strategy = strategy;
      CAPTURE(describe(run));
      check_same(train<T>(run), reference);
    }
  }
  for (const Strategy strategy : {Strategy::hsdp, Strategy::ddp}) {
    Run run = alone;
    run.ranks = 4;
    run.options.replicas = 2;
    run.options.strategy = strategy;
    CAPTURE(describe(run));
    check_same(train<T>(run), reference);
  }
}

TEST_CASE("batch_norms_of_granules_have_the_same_bits_on_any_number_of_ranks") { check_any_ranks<float>({}); }

TEST_CASE("batch_norms_of_granules_have_the_same_bits_on_any_number_of_ranks_with_bf16") {
  check_any_ranks<tessera::bf16>({.options = {.precision = tessera::bf16_mixed, .granules = granules}});
}

// In some rounds some ranks bring nothing, in the second step one rank alone has images.
TEST_CASE("batch_norms_of_granules_have_the_same_bits_where_granules_have_no_images") {
  check_any_ranks<float>({.of_steps = {6, 1, 4, 5}});
}

TEST_CASE("passes_that_are_done_again_leave_running_moments_of_granules_alone") {
  const Result reference = train<float>({});
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    check_same(train<float>({.ranks = ranks, .recompute = true}), reference);
  }
}

TEST_CASE("batch_norms_of_granules_have_the_bits_of_a_rank_alone_without_granules") {
  Run without{.options = {.micro_batches = granules, .accumulation = tessera::AccumulationMode::reduced}};
  without.shape.granule_norms = false;
  std::vector<Result> results = {train<float>({})};
  std::mutex mutex;
  tessera::launch({.ranks = 1, .threads = 1}, [&](World& world) {
    Net<float> net(world, without);
    for (int step = 0; step < without.steps; ++step) {
      for (std::size_t granule = 0; granule < granules; ++granule) net.train(step, granule);
      net.model.update();
    }
    collect(net.model, results.emplace_back(), mutex);
  });
  CHECK(results[0].weights == results[1].weights);
  CHECK(results[0].buffers == results[1].buffers);
}

TEST_CASE("a_batch_norm_that_is_not_of_granules_is_an_error_where_there_are_some") {
  Run run;
  run.shape.granule_norms = false;
  CHECK_THROWS_WITH_AS(train<float>(run), doctest::Contains("batch norm in unit stem: its running moments"),
                       tessera::UsageError);
}

}  // namespace

}  // namespace vision_granules_test
