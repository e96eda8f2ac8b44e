// Ranks bring values together inside windows: the mean over everybody's samples, whatever a rank has of them, and every
// misuse as an error that names the unit and the rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/shard/trace.hpp"
#include "toy_model.hpp"

namespace collective_test {

using namespace tessera;
using plan::WindowKind;

constexpr std::size_t channels = 5;

// y = weight · (x - mean of all ranks' x), for each channel; a count and a sum of each rank.
class Centring final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override {
    sums.when_skipped([this](Window& window, const Contributions& all) {
      if (window.kind() == WindowKind::forward) follow(window, all);
    });
    visitor("weight", weight);
    visitor("seen", seen);
    visitor("sums", sums);
    visitor("more", more);
  }

  void forward(Window& window, const std::vector<float>& x) {
    const bool evaluates = window.kind() == WindowKind::evaluate;
    const std::span<const float> w = window.parameter(weight);
    if (evaluates) return;
    bring(window, sums, x);
    const Contributions all = window.collect(sums);
    follow(window, all);
    window.stream().submit([this, all, &x, w] {
      y.resize(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] = w[i % channels] * (x[i] - static_cast<float>(mean(all, i % channels)));
      }
    });
    window.stream().submit([one = window.contribution(more).data()] { *one = 1.0; });
    const Contributions ones = window.collect(more);
    window.stream().submit([this, ones] {
      came = 0;
      for (std::size_t rank = 0; rank < ones.ranks(); ++rank) came += static_cast<int>(ones.of(rank)[0]);
    });
  }
  // Computes the gradient of a loss, which is dy at its end.
  void backward(Window& window, const std::vector<float>& x, const std::vector<float>& dy) {
    bring(window, sums, dy);
    const Contributions all = window.collect(sums);
    window.stream().submit([this, all, &x, &dy, dw = window.gradient(weight)] {
      dx.resize(x.size());
      std::fill(dw.begin(), dw.end(), 0.0f);
      for (std::size_t i = 0; i < x.size(); ++i) {
        dw[i % channels] += dy[i] * x[i];
        dx[i] = dy[i] - static_cast<float>(mean(all, i % channels));
      }
    });
  }

  static void bring(Window& window, const Collective& collective, const std::vector<float>& values) {
    window.stream().submit([to = window.contribution(collective), &values] {
      std::fill(to.begin(), to.end(), 0.0);
      to[0] = static_cast<double>(values.size() / channels);
      for (std::size_t i = 0; i < values.size(); ++i) to[1 + i % channels] += static_cast<double>(values[i]);
    });
  }
  static double mean(const Contributions& all, std::size_t channel) {
    double count = 0, sum = 0;
    for (std::size_t rank = 0; rank < all.ranks(); ++rank) {
      count += all.of(rank)[0];
      sum += all.of(rank)[1 + channel];
    }
    return count == 0 ? 0 : sum / count;
  }
  void follow(Window& window, const Contributions& all) {
    window.stream().submit([all, to = window.buffer(seen)] {
      for (std::size_t c = 0; c < channels; ++c) to[c] += static_cast<float>(mean(all, c));
    });
  }

  Parameter weight{{channels}, Initial::ones()};
  Buffer seen{{channels}};
  Collective sums{1 + channels};
  Collective more{1, {.backward = false}};
  std::vector<float> y, dx;
  int came = 0;  // ranks, in the last forward pass
};

// A weight whose gradient is zero, and a collective.
struct Weighted : Module {
  Weighted(std::size_t elements, const CollectiveOptions& options) : brought(elements, options) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight), visitor("brought", brought); }
  void backward(Window& window) {
    window.stream().submit([gradient = window.gradient(weight)] { std::ranges::fill(gradient, 0.0f); });
  }
  Parameter weight{{channels}, Initial::ones()};
  Collective brought;
};

// Sample s of channel c; rank r of n has as many as its share, which is uneven.
std::vector<float> samples_of(int rank, int ranks, std::size_t step) {
  constexpr std::size_t all = 23;
  const std::size_t begin = all * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks);
  const std::size_t end = all * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(ranks);
  std::vector<float> x(all * channels);
  Initial::uniform(-1.0f, 1.0f).fill(x, 5, "x", step * x.size());
  return {x.begin() + static_cast<std::ptrdiff_t>(begin * channels),
          x.begin() + static_cast<std::ptrdiff_t>(end * channels)};
}

struct Outcome {
  std::vector<float> weights, seen;
  std::vector<float> y;  // of all ranks, in their order
};

struct Job {
  FullyShardOptions options = {};
  int ranks = 1;
  int skipping = -1;  // the rank that skips the second step
};

// Three steps of two such layers, one after the other's gradient.
Outcome train(const Job& job) {
  Outcome outcome;
  std::mutex mutex;
  std::vector<std::vector<float>> y(static_cast<std::size_t>(job.ranks));
  launch({.ranks = job.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Centring first, second;
    std::vector<float> x, dy;
    toy::Model model(world, job.options, Sgd{.learning_rate = 0.1f}, first, second);
    for (std::size_t step = 0; step < 3; ++step) {
      if (step == 1 && world.rank() == job.skipping) {
        model.skip_step();
        continue;
      }
      x = samples_of(world.rank(), job.ranks, step);
      dy = x;
      for (std::size_t micro = 0; micro < job.options.micro_batches; ++micro) {
        model.forward(first, x);
        model.forward(second, first.y);
        model.backward(second, first.y, dy);
        model.backward(first, x, second.dx);
      }
      model.synchronize();
      if (job.skipping < 0 || step != 1) CHECK(first.came == job.ranks);
      if (step == 1 && job.skipping >= 0) CHECK(second.came == job.ranks - 1);
      model.update({.weight = static_cast<double>(x.size() / channels)});
    }
    model.synchronize();
    y[static_cast<std::size_t>(world.rank())] = second.y;
    const auto seen = model.buffer(second.seen);
    const std::vector<float> weights = model.whole(second.weight);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) {
      outcome.weights = weights;
      outcome.seen.assign(seen.begin(), seen.end());
    }
  });
  for (const auto& each : y) outcome.y.insert(outcome.y.end(), each.begin(), each.end());
  return outcome;
}

struct TwoCollectives final : Module {
  TwoCollectives() : weight({channels}, Initial::ones()), a(1), b(2, {.backward = false}) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight), visitor("a", a), visitor("b", b); }
  void forward(Window& window, const std::vector<Collective*>& order) {
    for (Collective* each : order) {
      window.contribution(*each)[0] = 1.0;
      window.collect(*each);
    }
  }
  Parameter weight;
  Collective a, b;
};

TEST_CASE("collectives_bring_uneven_samples_of_any_number_of_ranks_together") {
  const Outcome alone = train({.ranks = 1});
  for (const int ranks : {2, 3, 4, 5, 7}) {
    const Outcome together = train({.ranks = ranks});
    CAPTURE(ranks);
    REQUIRE(together.y.size() == alone.y.size());
    for (std::size_t i = 0; i < alone.y.size(); ++i) CHECK(together.y[i] == doctest::Approx(alone.y[i]).epsilon(1e-5));
    for (std::size_t c = 0; c < channels; ++c) {
      CHECK(together.seen[c] == doctest::Approx(alone.seen[c]).epsilon(1e-5));
      CHECK(together.weights[c] == doctest::Approx(alone.weights[c]).epsilon(1e-5));
    }
  }
}

TEST_CASE("collectives_have_the_same_bits_for_every_strategy_and_test_mode") {
  for (const int ranks : tests::rank_counts({2, 3, 5})) {
    const Outcome expected = train({.options = {.strategy = Strategy::ddp}, .ranks = ranks});
    for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
      for (const bool queued : {false, true}) {
        const Diagnostics modes{.delay_seed = 7, .poison = true, .touch = true, .queue_compute = queued};
        const Outcome other = train({.options = {.strategy = strategy, .diagnostics = modes}, .ranks = ranks});
        CHECK(other.weights == expected.weights);
        CHECK(other.seen == expected.seen);
        CHECK(other.y == expected.y);
      }
    }
  }
}

TEST_CASE("collectives_cross_a_mesh_in_the_order_of_ranks") {
  const Outcome flat = train({.ranks = 4});
  for (const Strategy strategy : {Strategy::hsdp, Strategy::hfsdp, Strategy::ddp}) {
    CHECK(train({.options = {.strategy = strategy, .replicas = 2}, .ranks = 4}).y.size() == flat.y.size());
    CHECK(train({.options = {.strategy = strategy, .replicas = 2}, .ranks = 4}).seen == flat.seen);
  }
}

TEST_CASE("rank_that_skips_a_step_brings_nothing_and_follows_the_others") {
  for (const int skipping : {0, 2}) {
    Outcome outcome;
    std::vector<std::vector<float>> seen(3);
    launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      Centring layer;
      toy::Model model(world, {.micro_batches = 2}, Sgd{.learning_rate = 0.1f}, layer);
      const std::vector<float> x = samples_of(world.rank(), 3, 0);
      if (world.rank() == skipping) {
        model.skip_step();
      } else {
        for (int micro = 0; micro < 2; ++micro) {
          model.forward(layer, x);
          model.synchronize();
          CHECK(layer.came == 2);
          model.backward(layer, x, x);
        }
        model.update();
      }
      const auto values = model.buffer(layer.seen);
      seen[static_cast<std::size_t>(world.rank())].assign(values.begin(), values.end());
    });
    CHECK(seen[0] == seen[1]);
    CHECK(seen[1] == seen[2]);
    CHECK(seen[0] != std::vector<float>(channels, 0.0f));
  }
}

// Replicas that train by themselves know nothing of each other's samples.
TEST_CASE("collectives_stay_inside_a_replica_where_that_is_asked_for") {
  const auto came = [](const CollectiveOptions& options, std::size_t every) {
    std::size_t ranks = 0;
    launch({.ranks = 6}, [&](World& world) {
      struct Layer final : Weighted {
        using Weighted::Weighted;
        std::vector<double> forward(Window& window) {
          window.contribution(brought)[0] = 1.0 + number;
          const Contributions all = window.collect(brought);
          std::vector<double> result;
          for (std::size_t rank = 0; rank < all.ranks(); ++rank) result.push_back(*all.of(rank));
          return result;
        }
        int number = 0;
      } layer(1, {.backward = false, .axes = options.axes});
      layer.number = world.rank();
      toy::Model model(world, {.strategy = Strategy::hsdp, .replicas = 2, .outer = {.every = every}},
                       Sgd{.learning_rate = 0.1f}, layer);
      const std::vector<double> numbers = model.forward(layer);
      model.backward(layer);
      model.update();
      const bool all = numbers.size() == 6;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        CHECK(numbers[i] == 1.0 + static_cast<double>(all ? i : i + 3 * static_cast<std::size_t>(world.rank() / 3)));
      }
      if (world.rank() == 0) ranks = numbers.size();
    });
    return ranks;
  };
  CHECK(came({}, 0) == 6);
  CHECK(came({.axes = tessera::Axis::shard}, 0) == 3);
  CHECK(came({}, 2) == 3);
}

// Every rank brings values of its own to one sum.
template <typename T>
struct Summing final : Weighted {
  Summing(CollectiveKind kind, std::size_t elements) : Weighted(elements, {.kind = kind, .type = dtype_of<T>}) {}
  static T value(std::size_t i, std::size_t rank) { return T(std::cos(float(5 * i + 3 * rank))); }
  std::vector<float> forward(Window& window, std::size_t rank) {
    const std::span<T> mine = window.contribution<T>(brought);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(i, rank);
    const Collected<T> came = window.collect<T>(brought);
    return {came.first, came.first + came.values};
  }
  void backward(Window& window) {
    forward(window, 0);
    Weighted::backward(window);
  }
};

template <typename T>
void check_sum(int ranks, CollectiveKind kind, std::size_t elements) {
  INFO(ranks, " ranks, ", to_string(kind), " of ", elements, " ", to_string(dtype_of<T>));
  std::mutex mutex;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Summing<T> layer(kind, elements);
    toy::Model model(world, {.diagnostics = {.poison = true, .touch = true}}, Sgd{.learning_rate = 0.1f}, layer);
    for (int step = 0; step < 2; ++step) {
      const std::vector<float> came = model.forward(layer, rank);
      model.backward(layer);
      model.update();
      const std::lock_guard lock(mutex);
      REQUIRE(came.size() == elements);
      for (std::size_t i = 0; i < elements; ++i) {
        float expected = 0;
        for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
          expected += float(Summing<T>::value(kind == CollectiveKind::all_reduce ? i : rank * elements + i, r));
        CHECK(came[i] == float(T(expected)));
      }
    }
  });
}

TEST_CASE("sums_in_windows_are_formed_in_fp32_in_rank_order_and_rounded_once") {
  for (const int ranks : tests::rank_counts({1, 2, 3, 5})) {
    for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter}) {
      for (const std::size_t elements : {std::size_t{1}, std::size_t{7}, std::size_t{300}, std::size_t{1024}}) {
        check_sum<float>(ranks, kind, elements);
        check_sum<bf16>(ranks, kind, elements);
        check_sum<fp16>(ranks, kind, elements);
      }
    }
  }
}

// A rank alone meets nobody, and what a joined stream brings comes in time as well.
TEST_CASE("what_a_joined_stream_brings_is_there_when_it_was_collected") {
  struct Layer final : Weighted {
    using Weighted::Weighted;
    void forward(Window& window, Stream& side, float& seen) {
      const std::span<float> mine = window.contribution<float>(brought);
      window.join(side);
      side.submit([mine] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::ranges::fill(mine, 3.0f);
      });
      const Collected<float> came = window.collect<float>(brought);
      window.stream().submit([&seen, first = came.first] { seen = *first; });
    }
  };
  for (const int ranks : {1, 2}) {
    launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      Stream side(world.device(), {.name = "side"});
      Layer layer(5, {.kind = CollectiveKind::all_reduce, .type = DType::fp32, .backward = false});
      toy::Model model(world, {.diagnostics = {.poison = true, .queue_compute = true}}, Sgd{.learning_rate = 0.1f},
                       layer);
      float seen = 0;
      model.forward(layer, side, seen);
      model.backward(layer);
      model.update();
      model.synchronize();
      CHECK(seen == 3.0f * static_cast<float>(ranks));
    });
  }
}

TEST_CASE("all_to_all_brings_each_rank_what_the_others_have_for_it") {
  struct Layer final : Weighted {
    using Weighted::Weighted;
    void forward(Window& window, std::size_t rank, const std::vector<std::size_t>& peers) {
      const std::span<float> parts = window.contribution<float>(brought);
      REQUIRE(parts.size() == 3 * peers.size());
      const auto value = [](std::size_t from, std::size_t to, std::size_t i) {
        return float(100 * from + 10 * to + i);
      };
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = value(rank, peers[i / 3], i % 3);
      const Collected<float> came = window.collect<float>(brought);
      REQUIRE(came.ranks() == peers.size());
      for (std::size_t i = 0; i < parts.size(); ++i) CHECK(came.of(i / 3)[i % 3] == value(peers[i / 3], rank, i % 3));
    }
  };
  for (const int replicas : {1, 2, 3, 5}) {
    for (const int shards : {1, 2}) {
      launch({.ranks = replicas * shards, .timeout = std::chrono::seconds(20)}, [&](World& world) {
        std::vector<std::size_t> peers;
        for (int r = 0; r < replicas; ++r)
          peers.push_back(static_cast<std::size_t>(r * shards + world.rank() % shards));
        Layer layer(
            3, {.kind = CollectiveKind::all_to_all, .type = DType::fp32, .backward = false, .axes = Axis::replicate});
        toy::Model model(world, {.replicas = static_cast<std::size_t>(replicas), .diagnostics = {.poison = true}},
                         Sgd{.learning_rate = 0.1f}, layer);
        for (int step = 0; step < 2; ++step) {
          model.forward(layer, static_cast<std::size_t>(world.rank()), peers);
          model.backward(layer);
          model.update();
        }
      });
    }
  }
}

TEST_CASE("misused_collective_names_unit_and_rank") {
  using Order = std::function<std::vector<Collective*>(TwoCollectives&, TwoCollectives&, int)>;
  const auto check = [](int ranks, const char* text, const Order& order) {
    toy::check_failure(text, ranks, [&](World& world) {
      TwoCollectives layer, other;
      FullyShard model(world, {});
      model.add(layer, "layer");
      model.add(other, "other");
      model.finalize(Sgd{.learning_rate = 0.1f});
      model.forward(layer, order(layer, other, world.rank()));
    });
  };
  using Layer = TwoCollectives;
  using List = std::vector<Collective*>;
  check(1, "rank 0, forward window of unit layer: layer.b came, and layer.a was expected",
        [](Layer& l, Layer&, int) { return List{&l.b}; });
  check(1, "rank 0, forward window of unit layer: layer.a came again", [](Layer& l, Layer&, int) {
    return List{&l.a, &l.b, &l.a};
  });
  check(1, "collective other.a belongs to unit other", [](Layer&, Layer& o, int) { return List{&o.a}; });
  check(1, "rank 0, forward window of unit layer closes, and its collective layer.b was not done",
        [](Layer& l, Layer&, int) { return List{&l.a}; });
  check(3, "rank 1, forward window of unit layer closes, and its collective layer.b was not done",
        [](Layer& l, Layer&, int rank) {
          return rank == 1 ? List{&l.a} : List{&l.a, &l.b};
        });
  Collective stranger(1);
  check(1, "never added to a model", [&](Layer&, Layer&, int) { return List{&stranger}; });
  CHECK_THROWS_AS(Collective(0), UsageError);
}

// No handle is left with which such a window could be closed.
TEST_CASE("what_throws_where_a_skipped_window_follows_the_others_ends_the_job") {
  const std::string text = toy::failure_of(2, [](World& world) {
    Centring layer;
    FullyShard model(world);
    Unit& unit = model.add(layer, UnitOptions{.name = "layer", .optional = true});
    layer.sums.when_skipped([](Window&, const Contributions&) { throw std::runtime_error("nobody to follow"); });
    model.finalize(AdamW{});
    CHECK_THROWS(model.skip(unit, WindowKind::forward));
    model.skip(unit, WindowKind::forward);
  });
  CHECK(toy::contains(text, "forward window of unit layer: nobody to follow"));
}

TEST_CASE("collective_in_a_window_of_another_kind_is_refused") {
  struct Layer final : Weighted {
    using Weighted::Weighted;
    void forward(Window& window) { window.collect(brought); }
  };
  toy::check_failure("layer.brought is not declared for forward windows", 1, [&](World& world) {
    Layer layer(1, {.forward = false});
    toy::Model model(world, {}, Sgd{.learning_rate = 0.1f}, layer);
    model.forward(layer);
  });
}

// One rank of many: the others bring zeros, which count as nothing.
TEST_CASE("imagined_ranks_bring_nothing") {
  simulate({.ranks = 64}, [&](World& world) {
    Centring layer;
    toy::Model model(world, {}, Sgd{.learning_rate = 0.1f}, layer);
    const std::vector<float> x = samples_of(0, 1, 0);
    model.forward(layer, x);
    model.synchronize();
    CHECK(layer.came == 1);
    model.backward(layer, x, x);
    model.update();
  });
}

TEST_CASE("recorded_pass_has_its_collectives") {
  launch({.ranks = 3}, [&](World& world) {
    Centring layer;
    FullyShard model(world, {});
    model.add(layer, "layer");
    const std::vector<float> x = samples_of(world.rank(), 3, 0);
    const auto pass = [&] {
      model.forward(layer, x);
      model.backward(layer, x, x);
    };
    model.add_program({.pass = pass});
    model.finalize(Sgd{.learning_rate = 0.1f});
    pass();
    model.synchronize();
    CHECK(layer.came == 3);
    model.update();
  });
}

// Its stamps are those of the plan, which has an operation for each collective.
TEST_CASE("traced_step_has_its_collectives") {
  for (const int ranks : {1, 3}) {
    launch({.ranks = ranks}, [&](World& world) {
      Centring layer;
      toy::Model model(world, {.micro_batches = 2}, Sgd{.learning_rate = 0.1f}, layer);
      Trace trace = model.trace({.first = 2, .last = 2, .next = 1});
      const std::vector<float> x = samples_of(world.rank(), ranks, 0);
      for (int step = 0; step < 3; ++step) {
        if (step == 1 && world.rank() == 2) {
          model.skip_step();
          continue;
        }
        for (int micro = 0; micro < 2; ++micro) {
          model.forward(layer, x);
          model.backward(layer, x, x);
        }
        model.update();
      }
      CHECK(trace.complete());
    });
  }
}

}  // namespace collective_test
