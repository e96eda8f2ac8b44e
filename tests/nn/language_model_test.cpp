// A small language model in real windows: tied embeddings, checkpointed blocks, dropout; the same bits however it runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "product_sets.hpp"
#include "reference.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/nn/counting_model.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/transformer_block.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace language_model_test {

constexpr std::size_t vocabulary = 11;
constexpr std::size_t context = 7;
constexpr std::size_t dim = 12;
constexpr std::size_t layers = 3;
constexpr std::size_t sequences = 2;
constexpr std::size_t rows = sequences * context;

// Units in the order of use: embedding, blocks, last normalisation. The embedding's second window makes the logits.
plan::Program program(bool recompute) {
  using plan::WindowKind;
  plan::Program result;
  for (std::size_t unit = 0; unit <= layers + 1; ++unit) result.micro_batch.push_back({unit, WindowKind::forward});
  result.micro_batch.push_back({0, WindowKind::forward});
  result.micro_batch.push_back({0, WindowKind::backward});
  result.micro_batch.push_back({layers + 1, WindowKind::backward});
  for (std::size_t unit = layers; unit > 0; --unit) {
    if (recompute) result.micro_batch.push_back({unit, WindowKind::recompute});
    result.micro_batch.push_back({unit, WindowKind::backward});
  }
  result.micro_batch.push_back({0, WindowKind::backward});
  return result;
}

// Each token follows from the one before.
struct Tokens {
  explicit Tokens(std::size_t first) {
    for (std::size_t row = 0; row < rows; ++row) {
      ids.push_back(static_cast<std::int32_t>((first + row * row / 2 + row) % vocabulary));
      labels.push_back((ids.back() * 3 + 2) % static_cast<std::int32_t>(vocabulary));
    }
  }
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;
};

template <typename T>
class LanguageModel {
 public:
  explicit LanguageModel(bool recompute) : recompute_(recompute) {
    for (std::size_t i = 0; i < layers; ++i) {
      blocks_.push_back(
          std::make_unique<TransformerBlock<T>>(TransformerShape{.dim = dim, .heads = 3, .layers = layers}, i));
    }
  }

  // Every kind of parameter, in units that go on training something and in one that does not.
  void freeze_some() {
    struct Freeze : ModuleVisitor {
      explicit Freeze(std::initializer_list<std::string_view> names_) : names(names_) {}
      void operator()(std::string_view name, Parameter& parameter) override {
        if (names.empty() || std::find(names.begin(), names.end(), name) != names.end()) parameter.set_frozen(true);
      }
      void operator()(std::string_view, Buffer&) override {}
      void operator()(std::string_view, Collective&) override {}
      void operator()(std::string_view name, Module& part) override {
        if (names.empty() || std::find(names.begin(), names.end(), name) == names.end()) return part.visit(*this);
        Freeze everything({});
        part.visit(everything);
      }
      std::vector<std::string_view> names;
    };
    Freeze tables({"wte.weight"}), pieces({"ln_1", "c_fc", "bias"}), everything({});
    embedding_.visit(tables);
    blocks_[0]->visit(pieces);
    blocks_[1]->visit(everything);
  }

  void add_to(FullyShard& model) {
    model.add(embedding_, "embedding");
    for (auto& block : blocks_) model.add(*block);
    model.add(norm_, "ln_f");
  }

  Bytes planned() {
    ActivationStack counting;
    CountingModel model;
    pass(model, counting, Tokens(0), {.length = context, .dropout = {.probability = 0.1f}}, nullptr);
    return counting.peak();
  }

  template <typename Model>
  void pass(Model& model, ActivationStack& stack, const Tokens& tokens, const SequenceBatch& batch, float* loss) {
    const ScratchScope scope(stack);
    MatrixView<T> x[layers + 1];
    for (auto& each : x) each = stack.push<T>(rows, dim);
    const auto embedded = model.forward(embedding_, stack, tokens.ids, x[0], batch);
    typename TransformerBlock<T>::Saved saved[layers];
    for (std::size_t i = 0; i < layers; ++i) {
      std::optional<ScratchScope> insides;
      if (recompute_) insides.emplace(stack);
      saved[i] = model.forward(*blocks_[i], stack, x[i], x[i + 1], batch);
    }
    const MatrixView<T> gradient = stack.push<T>(rows, dim);
    head(model, stack, x[layers], gradient, tokens, loss);
    for (std::size_t i = layers; i-- > 0;) {
      const ScratchScope insides(stack);
      if (recompute_) saved[i] = model.recompute(*blocks_[i], stack, x[i], x[i + 1], batch);
      model.backward(*blocks_[i], stack, saved[i], gradient);
    }
    model.backward(embedding_, stack, embedded, gradient);
  }

 private:
  // From the last block's output to its gradient.
  template <typename Model>
  void head(Model& model, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> dx, const Tokens& tokens,
            float* loss) {
    const ScratchScope scope(stack);
    const MatrixView<T> normal = stack.push<T>(rows, dim), logits = stack.push<T>(rows, vocabulary);
    const auto saved_norm = model.forward(norm_, stack, x, normal);
    const Prediction<T> prediction{
        .logits = logits, .targets = {.labels = tokens.labels}, .loss = loss, .at_once = recompute_};
    const auto saved = model.forward(embedding_, stack, normal, prediction);
    model.backward(embedding_, stack, saved, dx);
    model.backward(norm_, stack, saved_norm, dx, dx);
  }

  bool recompute_;
  Embedding<T> embedding_{{.vocabulary = vocabulary, .context = context, .dim = dim}};
  std::vector<std::unique_ptr<TransformerBlock<T>>> blocks_;
  LayerNorm<T> norm_{dim};
};

struct Run {
  int ranks = 1;
  FullyShardOptions options = {};
  bool recompute = false;
  bool freeze = false;
  std::size_t steps = 20;
};

struct Outcome {
  std::vector<float> losses;    // averaged over ranks
  std::size_t allocations = 0;  // after the second step
  Bytes planned;
  Bytes peak;
};

template <typename T>
Outcome train(Run run) {
  Outcome outcome;
  outcome.losses.resize(run.steps);
  run.options.program = program(run.recompute);
  launch({.ranks = run.ranks}, [&](World& world) {
    LanguageModel<T> language_model(run.recompute);
    if (run.freeze) language_model.freeze_some();
    const Bytes planned = language_model.planned();
    Arena memory(world.device(), planned);
    ActivationStack stack({memory.data(), planned.count()});
    const auto rank = static_cast<std::size_t>(world.rank());
    const Tokens tokens(rank);
    SequenceBatch batch{.length = context,
                        .dropout = {.probability = 0.1f, .key = {.seed = 3, .first_row = rank * rows}}};
    std::vector<float> losses(run.steps);
    std::size_t before = 0;
    FullyShard model(world, run.options);
    language_model.add_to(model);
    model.finalize(AdamW{.learning_rate = 0.01f});
    for (std::size_t step = 0; step < run.steps; ++step) {
      batch.dropout.key.step = static_cast<std::uint32_t>(step);
      language_model.pass(model, stack, tokens, batch, &losses[step]);
      model.update();
      if (step == 1) {
        model.synchronize();
        before = allocations_so_far();
      }
    }
    model.synchronize();
    const std::size_t allocations = allocations_so_far() - before;
    for (float& loss : losses) loss = world.average(loss, "loss");
    if (world.rank() == 0) outcome = {losses, allocations, planned, stack.peak()};
  });
  return outcome;
}

TEST_CASE("a_language_model_learns_with_the_same_bits_for_every_way_to_run_it") {
  for (const int ranks : {1, 3}) {
    const std::vector<float> expected = train<float>({.ranks = ranks, .options = {.strategy = Strategy::ddp}}).losses;
    CHECK(expected.back() < 0.8f * expected.front());
    for (const Strategy strategy : flat_strategies) {
      for (const bool recompute : {false, true}) {
        for (const bool queued : {false, true}) {
          Run run{.ranks = ranks, .options = {.strategy = strategy}, .recompute = recompute};
          run.options.diagnostics.queue_compute = queued;
          run.options.diagnostics.poison = true;
          if (queued) run.options.diagnostics.delay_seed = 5;
          CHECK(train<float>(run).losses == expected);
        }
      }
    }
  }
}

TEST_CASE("a_language_model_with_frozen_parameters_learns_with_the_same_bits_for_every_strategy") {
  const std::vector<float> expected =
      train<float>({.ranks = 3, .options = {.strategy = Strategy::ddp}, .freeze = true}).losses;
  CHECK(expected.back() < expected.front());
  CHECK(expected != train<float>({.ranks = 3}).losses);
  for (const Strategy strategy : flat_strategies) {
    for (const bool recompute : {false, true}) {
      Run run{.ranks = 3, .options = {.strategy = strategy}, .recompute = recompute, .freeze = true};
      run.options.diagnostics.poison = true;
      CHECK(train<float>(run).losses == expected);
    }
  }
}

TEST_CASE("language_models_of_16_bits_learn_as_those_of_32_do") {
  const std::vector<float> expected = train<float>({.ranks = 2}).losses;
  const auto check = [&](const std::vector<float>& losses) {
    for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(0.05));
  };
  check(train<bf16>({.ranks = 2, .options = {.precision = bf16_mixed}}).losses);
  check(train<bf16>({.ranks = 2, .options = {.precision = bf16_mixed}, .recompute = true}).losses);
  const Precision fp16_everywhere{DType::fp16, DType::fp16, DType::fp16};
  check(train<fp16>({.ranks = 2, .options = {.precision = fp16_everywhere}}).losses);
}

TEST_CASE("checkpointed_blocks_hold_less_and_all_is_planned_and_nothing_allocated") {
  const WithProducts own = without_onednn();
  const Outcome whole = train<float>({.steps = 4});
  const Outcome checkpointed = train<float>({.recompute = true, .steps = 4});
  const Outcome half = train<bf16>({.options = {.precision = bf16_mixed}, .recompute = true, .steps = 4});
  for (const Outcome& each : {whole, checkpointed, half}) {
    CHECK(each.allocations == 0);
    CHECK(each.peak == each.planned);
  }
  CHECK(checkpointed.peak.count() < 2 * whole.peak.count() / 3);
  CHECK(half.peak < checkpointed.peak);
}

}  // namespace language_model_test
