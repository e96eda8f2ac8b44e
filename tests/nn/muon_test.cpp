// Muon: its orthogonalisation against double precision, its updates against a plain loop, the same bits for every
// strategy, and what is refused.
#include "tessera/nn/muon.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "../extent.hpp"
#include "../shard/tensors.hpp"
#include "../shard/toy_model.hpp"
#include "reference.hpp"
#include "src/products/choice.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/plan/verify.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace muon_test {

namespace {

using tessera::bf16;
using tessera::DeviceKind;
using tessera::FullyShardOptions;
using tessera::Optimizer;
using tessera::Shape;
using tessera::Strategy;
using tessera::Stream;
using tessera::nn::Muon;
using tessera::nn::MuonScale;

using Matrix = std::vector<double>;  // row by row

Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t k, std::size_t n) {
  Matrix c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t p = 0; p < k; ++p) {
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, std::size_t rows, std::size_t columns) {
  Matrix result(a.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) result[j * rows + i] = a[i * columns + j];
  }
  return result;
}

// The polynomial in double, from the paper.
Matrix orthogonalised(Matrix x, std::size_t rows, std::size_t columns) {
  if (rows > columns) {
    return transposed(orthogonalised(transposed(x, rows, columns), columns, rows), columns, rows);
  }
  double norm = 0;
  for (const double each : x) norm += each * each;
  for (double& each : x) each /= std::max(std::sqrt(norm), 1e-7);
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x, rows, columns), rows, columns, rows);
    Matrix b = product(gram, gram, rows, rows, rows);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * gram[i] + 2.0315 * b[i];
    const Matrix bx = product(b, x, rows, rows, columns);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + bx[i];
  }
  return x;
}

// Matrices of one shape, one behind the other, through the optimizer's own steps.
std::vector<std::vector<bf16>> transform_all(const std::vector<std::vector<float>>& matrices, const Shape& shape) {
  const std::unique_ptr<Optimizer> muon = Muon{};
  const tessera::WholeTensors& steps = *muon->whole_tensors();
  const auto spec = steps.wants("blocks.0.weight", shape, DeviceKind::cpu);
  REQUIRE(spec.has_value());
  const std::size_t elements = tessera::element_count(shape), step = (elements + 255) / 256 * 256;
  std::vector<bf16> x(matrices.size() * step, bf16(std::nanf("")));
  std::vector<double> workspace(spec->workspace.count() / sizeof(double) + 1, 7.0);
  std::vector<tessera::kernels::Target> planes(matrices.size());
  std::vector<tessera::WholeTensor> tensors;
  for (std::size_t n = 0; n < matrices.size(); ++n) {
    for (std::size_t i = 0; i < elements; ++i) x[n * step + i] = bf16(matrices[n][i]);
    planes[n] = {x.data() + n * step, tessera::DType::bf16};
    tensors.push_back(
        {"blocks.0.weight", shape, std::span(&planes[n], 1), reinterpret_cast<std::byte*>(workspace.data())});
  }
  Stream stream(tessera::Device::cpu(), {.mode = tessera::StreamMode::immediate});
  steps.transform(stream, tensors);
  std::vector<std::vector<bf16>> results;
  for (std::size_t n = 0; n < matrices.size(); ++n) {
    results.emplace_back(x.begin() + std::ptrdiff_t(n * step), x.begin() + std::ptrdiff_t(n * step + elements));
  }
  return results;
}
std::vector<bf16> transform(const std::vector<float>& values, const Shape& shape) {
  return transform_all(std::vector<std::vector<float>>{values}, shape).front();
}

}  // namespace

TEST_CASE("muon_orthogonalises_as_double_precision_does") {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 7}, Shape{7, 1}, Shape{13, 5}, Shape{5, 13}, Shape{64, 48},
                             Shape{31, 129}, Shape{130, 97}}) {
    const std::vector<float> values = random_floats(shape[0] * shape[1], 5);
    const std::vector<bf16> ours = transform(values, shape);
    const Matrix expected = orthogonalised(widened(values), shape[0], shape[1]);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      error += std::pow(double(float(ours[i])) - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    CHECK_MESSAGE(std::sqrt(error / size) < 0.06, "[" << shape[0] << ", " << shape[1] << "]");
    // All singular values are near 1, so the squared norm is about their number.
    const double number = double(std::min(shape[0], shape[1]));
    CHECK(size > 0.4 * number);
    CHECK(size < 1.6 * number);
  }
}

// How many an owner has depends on the mesh. Matrices of prime sides are cut among threads, or not, or are more than
// are worked on at once; libraries' bits depend on how a product is cut.
TEST_CASE("muon_has_the_same_bits_for_a_matrix_alone_and_among_others") {
  const tessera::nn::ProductSet before = tessera::nn::active_product_set();
  for (const tessera::nn::ProductSet set : tessera::nn::available_product_sets()) {
    tessera::nn::select_product_set(set);
    for (const int threads : {1, 2, 3}) {
      tessera::nn::set_threads(threads);
      for (const Shape& shape : {Shape{1, 1}, Shape{5, 13}, Shape{29, 7}, Shape{101, 257}, Shape{257, 101}}) {
        std::vector<std::vector<float>> matrices;
        std::vector<std::vector<bf16>> alone;
        for (unsigned seed = 0; seed < 17; ++seed) {
          matrices.push_back(random_floats(tessera::element_count(shape), seed + 1));
          alone.push_back(transform(matrices.back(), shape));
        }
        for (const std::size_t count : {2u, 7u, 17u}) {
          const auto together = transform_all({matrices.begin(), matrices.begin() + std::ptrdiff_t(count)}, shape);
          bool same = true;
          for (std::size_t n = 0; n < count; ++n) {
            same = same && std::memcmp(together[n].data(), alone[n].data(), 2 * alone[n].size()) == 0;
          }
          CHECK_MESSAGE(same, count << " of [" << shape[0] << ", " << shape[1] << "] by " << to_string(set) << " on "
                                    << threads << " threads");
        }
      }
    }
  }
  tessera::nn::set_threads(1);
  tessera::nn::select_product_set(before);
}

TEST_CASE("muon_of_a_zero_matrix_is_zero") {
  for (const bf16& each : transform(std::vector<float>(15, 0.0f), {3, 5})) CHECK(float(each) == 0.0f);
}

TEST_CASE("muon_wants_matrices_whose_names_are_not_left_out") {
  const std::unique_ptr<Optimizer> muon = Muon{};
  const auto wants = [&](const char* name, const Shape& shape) {
    return muon->whole_tensors()->wants(name, shape, DeviceKind::cpu).has_value();
  };
  CHECK(wants("blocks.0.mlp.c_fc.weight", {16, 4}));
  CHECK_FALSE(wants("blocks.0.mlp.c_fc.bias", {16}));
  CHECK_FALSE(wants("blocks.0.conv.weight", {4, 3, 3, 4}));
  CHECK_FALSE(wants("wte.weight", {16, 4}));
  CHECK_FALSE(wants("head.weight", {16, 4}));
  CHECK_FALSE(wants("model.head.weight", {16, 4}));
  CHECK_FALSE(wants("output.weight", {16, 4}));
  CHECK(wants("encoder.multihead_attn.in_proj_weight", {16, 4}));
  const std::unique_ptr<Optimizer> own = Muon{.elementwise = {"*.c_fc.*"}};
  CHECK_FALSE(own->whole_tensors()->wants("blocks.0.mlp.c_fc.weight", {16, 4}, DeviceKind::cpu).has_value());
  CHECK(own->whole_tensors()->wants("wte.weight", {16, 4}, DeviceKind::cpu).has_value());
}

TEST_CASE("muon_refuses_a_pattern_of_its_users_that_matches_nothing") {
  const auto failure = [](const std::vector<std::string>& elementwise) {
    return toy::failure_of(1, [&](tessera::World& world) {
      toy::Layer<float> layer(3, 4, 1);
      tessera::FullyShard model(world, {});
      model.add(layer, "layer");
      model.finalize(Muon{.elementwise = elementwise});
    });
  };
  CHECK(failure(Muon{}.elementwise) == "");
  CHECK(failure({"*wte*", "layer.*"}) == "");
  CHECK(toy::contains(failure({"*wte*", "haed.*"}),
                      "a pattern of optimizer muon matches no parameter that it updates: "
                      "\"haed.*\"; the first is layer.weight"));
}

TEST_CASE("muon_refuses_settings_out_of_range") {
  const auto text = [](const Muon& settings) {
    return tests::error_text<tessera::UsageError>([&] { const std::unique_ptr<Optimizer> made = settings; });
  };
  CHECK(text({.learning_rate = -1.0f}) == "Muon: learning_rate must be at least 0 and finite, but is -1");
  CHECK(text({.momentum = 1.0f}) == "Muon: momentum must be at least 0 and below 1, but is 1");
  CHECK(text({.epsilon = 0.0f}) == "Muon: epsilon must be above 0 and finite, but is 0");
  CHECK(text({.beta2 = -0.5f}) == "Muon: beta2 must be at least 0 and below 1, but is -0.5");
  CHECK(text({.groups = {{.patterns = {}}}}).find("a group without patterns") != std::string::npos);
  CHECK(text({}).empty());
}

namespace {

template <typename T>
toy::Result train(int ranks, const FullyShardOptions& options, const Muon& settings) {
  toy::Run run;
  run.options = options;
  run.ranks = ranks;
  run.widths = {5, 13, 13, 13, 13, 67, 7, 3};  // of equal matrices one rank has several at once
  if (options.precision.gradient == tessera::DType::fp16) run.overflows = {1};
  run.optimizer = [&](float clip) {
    Muon with_clip = settings;
    with_clip.clip_norm = clip;
    return std::unique_ptr<Optimizer>(with_clip);
  };
  return toy::train<T>(run);
}

template <typename T>
void check_strategies(const tessera::Precision& precision) {
  struct Mesh {
    int ranks;
    std::size_t replicas;
  };
  const std::vector<Mesh> meshes = tests::sanitized ? std::vector<Mesh>{{3, 1}, {4, 2}}
                                                    : std::vector<Mesh>{{1, 1}, {2, 1}, {3, 1}, {5, 1}, {4, 2}, {6, 2}};
  const Muon settings{.learning_rate = 0.01f, .scale = MuonScale::original};
  for (const Mesh& mesh : meshes) {
    FullyShardOptions options;
    options.strategy = Strategy::ddp;
    options.replicas = mesh.replicas;
    options.precision = precision;
    const toy::Result expected = train<T>(mesh.ranks, options, settings);
    for (const Strategy strategy :
         {Strategy::zero1, Strategy::zero2, Strategy::fsdp, Strategy::hsdp, Strategy::hfsdp}) {
      options.strategy = strategy;
      options.diagnostics.poison = true;
      CHECK_MESSAGE(toy::same_bits(train<T>(mesh.ranks, options, settings), expected),
                    to_string(strategy) << " on " << mesh.ranks << " ranks, " << mesh.replicas << " replicas");
    }
  }
}

}  // namespace

TEST_CASE("muon_has_the_same_bits_for_every_strategy") {
  check_strategies<float>(tessera::fp32_precision);
  check_strategies<bf16>(tessera::bf16_mixed);
  check_strategies<tessera::fp16>(tessera::fp16_mixed);
}

// Against the same steps in double, from the gradients that the runtime has reduced: one rank, no clipping. There are
// more samples than rows and columns, so that no singular value of a gradient is roundings alone.
TEST_CASE("muon_updates_matrices_and_vectors_as_a_plain_loop_does") {
  constexpr std::size_t in = 11, out = 6, rows = 24;
  const Muon settings{.learning_rate = 0.02f, .scale = MuonScale::original};
  tessera::launch({.ranks = 1, .timeout = std::chrono::seconds(20)}, [&](tessera::World& world) {
    toy::Layer<float> layer(in, out, rows);
    tessera::FullyShard model(world, {});
    model.add(layer, "layer");
    model.finalize(settings);
    Matrix momentum(in * out), first(out), second(out);
    for (int step = 1; step <= 4; ++step) {
      std::map<std::string, toy::Values> before, gradients;
      for (const auto& piece : model.pieces(model.unit(0))) {
        before[piece.parameter->name()] = {piece.values.begin(), piece.values.end()};
      }
      const toy::Values x = toy::sample(rows * in, step, 0, 0, 0);
      toy::Values dy(rows * out);
      const toy::Values& y = model.forward(layer, x);
      model.stream().submit([&] {
        for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = y[i] - 0.25f;
      });
      model.backward(layer, dy);
      model.update();
      model.synchronize();
      for (const auto& piece : model.pieces(model.unit(0), "gradient")) {
        gradients[piece.parameter->name()] = {piece.values.begin(), piece.values.end()};
      }
      Matrix direction(in * out);
      for (std::size_t i = 0; i < momentum.size(); ++i) {
        const double g = double(gradients["layer.weight"][i]);
        momentum[i] += 0.05 * (g - momentum[i]);
        direction[i] = momentum[i] + 0.05 * (g - momentum[i]);
      }
      direction = orthogonalised(direction, out, in);
      double error = 0, size = 0;
      for (const auto& piece : model.pieces(model.unit(0))) {
        const toy::Values& old = before[piece.parameter->name()];
        for (std::size_t i = 0; i < piece.values.size(); ++i) {
          const double kept = double(old[i]) * (1 - 0.02 * 0.1);
          if (piece.parameter->name() == "layer.weight") {
            error += std::pow(double(piece.values[i]) - (kept - 0.02 * direction[i]), 2);
            size += std::pow(0.02 * direction[i], 2);
            continue;
          }
          const double g = double(gradients["layer.bias"][i]);
          first[i] = 0.9 * first[i] + 0.1 * g;
          second[i] = 0.95 * second[i] + 0.05 * g * g;
          const double of_first = first[i] / (1 - std::pow(0.9, step)),
                       of_second = second[i] / (1 - std::pow(0.95, step));
          const double expected = kept - 0.02 * of_first / (std::sqrt(of_second) + 1e-8);
          CHECK(double(piece.values[i]) == doctest::Approx(expected).epsilon(1e-4));
        }
      }
      CHECK(std::sqrt(error / size) < 0.06);
    }
  });
}

namespace {

// Matrices between vectors, whose gradients every rank has alike.
struct Block : tessera::Module {
  const tessera::Initial initial = tessera::Initial::uniform(-0.5f, 0.5f);
  tessera::Parameter scale{{37}, initial}, up{{24, 40}, initial}, shift{{129}, initial}, down{{40, 8}, initial};
  std::vector<tessera::Parameter*> all{&scale, &up, &shift, &down};
  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("scale", scale);
    visitor("up", up);
    visitor("shift", shift);
    visitor("down", down);
  }
  void forward(tessera::Window&) {}
  void backward(tessera::Window& window, int step) {
    for (tessera::Parameter* each : all) {
      const std::span<float> gradient = window.gradient<float>(*each);
      window.stream().submit([gradient, step] {
        for (std::size_t e = 0; e < gradient.size(); ++e) {
          gradient[e] = tensors::gradient_of(gradient.size(), step, e);
        }
      });
    }
  }
};

using Values = std::map<std::string, std::vector<float>>;

struct Place {
  int ranks;
  Strategy strategy = Strategy::fsdp;
  std::size_t replicas = 1;
  tessera::MemorySpace states_in = tessera::MemorySpace::device;
};

// Trains the steps [first, end), from the checkpoint where the first is not 0, and saves one.
Values go_on(const Place& place, const std::filesystem::path& directory, int first, int end) {
  Values values;
  std::mutex mutex;
  tessera::launch({.ranks = place.ranks, .timeout = std::chrono::seconds(20)}, [&](tessera::World& world) {
    Block blocks[2];
    tessera::FullyShard model(world, {.strategy = place.strategy,
                                      .replicas = place.replicas,
                                      .offload = {.optimizer = place.states_in},
                                      .checkpointing = tessera::Checkpointing::blocking});
    for (Block& block : blocks) model.add(block, "block" + std::to_string(&block - blocks));
    model.finalize(Muon{.learning_rate = 0.01f});
    tessera::Checkpointer checkpoints(model, {.directory = directory});
    if (first > 0) checkpoints.load(checkpoints.latest()->path);
    for (int step = first; step < end; ++step) {
      if (step % 2 == 1) model.recompile();
      for (Block& block : blocks) model.forward(block);
      model.backward(blocks[1], step);
      model.backward(blocks[0], step);
      model.update();
    }
    checkpoints.save({.step = std::uint64_t(end)});
    Values mine;
    for (Block& block : blocks) {
      for (const tessera::Parameter* each : block.all) {
        for (const char* state : {"master", "momentum", "v"}) {
          if (each->shape().size() == 2 && state == std::string("v")) continue;
          mine[std::string(state) + "/" + each->name()] = model.whole(*each, state);
        }
      }
      CHECK(model.pieces(*block.up.unit(), "v").size() <= 2);
      CHECK_THROWS_WITH_AS(model.whole(block.up, "v"), doctest::Contains("which keeps no \"v\" of it"),
                           tessera::UsageError);
    }
    const std::lock_guard lock(mutex);
    values = mine;
  });
  return values;
}

}  // namespace

// Matrices keep their momentum alone, vectors two moments, wherever shares begin: both go with the elements to another
// plan, and from a checkpoint to other ranks.
TEST_CASE("second_moments_of_vectors_alone_go_on_on_other_ranks_and_strategies") {
  const TemporaryFolder folder;
  const Values expected = go_on({1}, folder / "whole", 0, 4);
  CHECK(expected.size() == 2 * (4 + 4 + 2));
  int run = 0;
  for (const Place& from : {Place{1}, Place{3, Strategy::ddp}}) {
    for (const Place& to : {Place{2}, Place{3, Strategy::zero2}, Place{4, Strategy::hsdp, 2}, Place{2, Strategy::ddp},
                            Place{3, Strategy::fsdp, 1, tessera::MemorySpace::host}}) {
      const std::filesystem::path directory = folder / std::to_string(run++);
      go_on(from, directory, 0, 2);
      CHECK(go_on(to, directory, 2, 4) == expected);
    }
  }
}

}  // namespace muon_test
