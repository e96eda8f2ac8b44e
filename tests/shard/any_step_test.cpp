// Steps that are no chain of units, recorded from the pass that trains: a U-Net whose levels are units inside each
// other's windows, a mixture of experts of which most are skipped, and a recurrent net that uses one unit at each time
// step. Each against a plain loop in double precision, and bit for bit between strategies.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../extent.hpp"
#include "../windows.hpp"
#include "plain_layer.hpp"
#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace any_step_test {

using namespace tessera;
using plain::error;
using toy::contains;
using toy::failure_of;
using toy::Values;

constexpr std::size_t rows = 3;
constexpr int steps = 4;
constexpr float rate = 0.02f;

using Layer = toy::Layer<float>;

Values input(std::size_t width, int step, std::size_t micro, int rank) {
  return toy::sample(rows * width, step, micro, rank, 0);
}

// Each of the three has these: a pass of this rank, and the same of all ranks in plain loops.
struct Net {
  virtual ~Net() = default;
  virtual void add_to(FullyShard& model) = 0;
  virtual void pass(FullyShard& model, int step, std::size_t micro, int rank) = 0;
};
struct PlainNet {
  virtual ~PlainNet() = default;
  virtual void pass(int step, std::size_t micro, int rank) = 0;
  std::map<std::string, plain::Layer> layers;
};

// ---- a U-Net: levels in each other ----

constexpr std::size_t widths[] = {5, 13, 7, 3};

// y = up(d + inner(d)), d = down(x). The inner level is a unit of its own.
struct Level : Module {
  explicit Level(std::size_t depth)
      : down(widths[depth], widths[depth + 1], rows), up(widths[depth + 1], widths[depth], rows) {
    if (depth + 2 < std::size(widths)) inner = std::make_unique<Level>(depth + 1);
  }
  void visit(ModuleVisitor& visitor) override {
    visitor("down", down);
    if (inner) visitor("inner", *inner);
    visitor("up", up);
  }

  const Values& forward(Window& window, const Values& x) {
    const Values& d = down.forward(window, x);
    if (!inner) return up.forward(window, d);
    return up.forward(window, add(window, sum, d, window.forward(*inner, d)));
  }
  const Values& backward(Window& window, const Values& dy) {
    const Values& ds = up.backward(window, dy);
    if (!inner) return down.backward(window, ds);
    if (recomputes) window.forward(*inner, down.y);
    return down.backward(window, add(window, dsum, ds, window.backward(*inner, ds)));
  }

  static const Values& add(Window& window, Values& into, const Values& a, const Values& b) {
    window.stream().submit([&into, &a, &b] {
      into.resize(a.size());
      for (std::size_t i = 0; i < a.size(); ++i) into[i] = a[i] + b[i];
    });
    return into;
  }

  Layer down, up;
  std::unique_ptr<Level> inner;
  bool recomputes = false;  // what is inside, in the backward pass
  Values sum, dsum;
};

struct UNet : Net {
  explicit UNet(bool recomputes = false) { outer.recomputes = outer.inner->recomputes = recomputes; }

  void add_to(FullyShard& model) override {
    model.add(*outer.inner->inner, UnitOptions{.name = "level2", .prefetch = 2});
    model.add(*outer.inner, UnitOptions{.name = "level1", .prefetch = 0});
    model.add(outer, UnitOptions{.name = "level0", .reshard_after_forward = false});
  }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    x[micro] = input(widths[0], step, micro, rank);
    const Values& y = model.forward(outer, x[micro]);
    model.stream().submit([this, &y, &in = x[micro], scale = model.loss_scale()] { dy = error(y, in, *scale); });
    model.backward(outer, dy);
  }

  Level outer{0};
  std::array<Values, 4> x;
  Values dy;
};

struct PlainUNet : PlainNet {
  PlainUNet() {
    for (std::size_t depth = 0; depth + 1 < std::size(widths); ++depth) {
      const std::string level = "level" + std::to_string(depth);
      layers.emplace(level + ".down", plain::Layer(level + ".down", widths[depth], widths[depth + 1]));
      layers.emplace(level + ".up", plain::Layer(level + ".up", widths[depth + 1], widths[depth]));
    }
  }
  void pass(int step, std::size_t micro, int rank) override {
    const Values x = input(widths[0], step, micro, rank);
    through(0, plain::numbers(x), [&](const plain::Numbers& y) { return error<double>(y, x, 1.0); });
  }
  // Forward, what comes behind, and backward.
  using Behind = std::function<plain::Numbers(const plain::Numbers& y)>;
  plain::Numbers through(std::size_t depth, const plain::Numbers& x, const Behind& behind) {
    plain::Layer& down = layers.at("level" + std::to_string(depth) + ".down");
    plain::Layer& up = layers.at("level" + std::to_string(depth) + ".up");
    const plain::Numbers d = down.forward(x);
    const auto rise = [&](const plain::Numbers& s) {
      const plain::Numbers y = up.forward(s);
      return up.backward(s, y, behind(y));
    };
    if (depth + 2 == std::size(widths)) return down.backward(x, d, rise(d));
    plain::Numbers ds;
    const plain::Numbers di = through(depth + 1, d, [&](const plain::Numbers& e) { return ds = rise(plus(d, e)); });
    return down.backward(x, d, plus(ds, di));
  }
  static plain::Numbers plus(plain::Numbers a, const plain::Numbers& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
};

// ---- a mixture of experts: one of three computes, another one on each rank ----

constexpr std::size_t experts = 3, model_width = 5, hidden_width = 11;

std::size_t chosen(int step, std::size_t micro, int rank) {
  return (static_cast<std::size_t>(step + rank) + 2 * micro) % experts;
}

struct Mixture : Net {
  Mixture() {
    for (std::size_t e = 0; e < experts; ++e) {
      expert.push_back(std::make_unique<Layer>(model_width, hidden_width, rows));
    }
  }
  void add_to(FullyShard& model) override {
    for (std::size_t e = 0; e < experts; ++e) {
      model.add(*expert[e], UnitOptions{.name = "expert" + std::to_string(e), .optional = true});
    }
    model.add(head, "head");
  }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    using plan::WindowKind;
    const std::size_t mine = chosen(step, micro, rank);
    x[micro] = input(model_width, step, micro, rank);
    for (std::size_t e = 0; e < experts; ++e) {
      e == mine ? void(model.forward(*expert[e], x[micro])) : model.skip(*expert[e], WindowKind::forward);
    }
    const Values& y = model.forward(head, expert[mine]->y);
    model.stream().submit([this, &y, &in = x[micro], scale = model.loss_scale()] { dy = error(y, in, *scale); });
    const Values& dh = model.backward(head, dy);
    for (std::size_t e = experts; e-- > 0;) {
      e == mine ? void(model.backward(*expert[e], dh)) : model.skip(*expert[e], WindowKind::backward);
    }
  }

  std::vector<std::unique_ptr<Layer>> expert;
  Layer head{hidden_width, model_width, rows};
  std::array<Values, 4> x;
  Values dy;
};

struct PlainMixture : PlainNet {
  PlainMixture() {
    for (std::size_t e = 0; e < experts; ++e) {
      const std::string name = "expert" + std::to_string(e);
      layers.emplace(name, plain::Layer(name, model_width, hidden_width));
    }
    layers.emplace("head", plain::Layer("head", hidden_width, model_width));
  }
  void pass(int step, std::size_t micro, int rank) override {
    const Values in = input(model_width, step, micro, rank);
    const plain::Numbers x = plain::numbers(in);
    plain::Layer& expert = layers.at("expert" + std::to_string(chosen(step, micro, rank)));
    plain::Layer& head = layers.at("head");
    const plain::Numbers h = expert.forward(x);
    const plain::Numbers y = head.forward(h);
    expert.backward(x, h, head.backward(h, y, error<double>(y, in, 1.0)));
  }
};

// ---- a recurrent net: h' = tanh(W [h, x] + b) at each time step, with one W ----

constexpr std::size_t times = 4, state_width = 6, input_width = 2;
constexpr std::size_t joined_width = state_width + input_width;

template <typename Number>
std::vector<Number> joined(const std::vector<Number>& h, const std::vector<Number>& x) {
  std::vector<Number> both;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = [&](const std::vector<Number>& from, std::size_t width) {
      both.insert(both.end(), from.begin() + std::ptrdiff_t(r * width), from.begin() + std::ptrdiff_t((r + 1) * width));
    };
    row(h, state_width);
    row(x, input_width);
  }
  return both;
}
// The part of a gradient that belongs to h.
template <typename Number>
std::vector<Number> of_state(const std::vector<Number>& both) {
  std::vector<Number> dh;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto begin = both.begin() + std::ptrdiff_t(r * joined_width);
    dh.insert(dh.end(), begin, begin + std::ptrdiff_t(state_width));
  }
  return dh;
}

// Weights are the layer's own; what it saw at each time step is kept here.
struct Recurrent : Net {
  void add_to(FullyShard& model) override { model.add(cell, "cell"); }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    std::vector<Time>& seen = times_of[micro];
    seen.resize(times);
    for (std::size_t t = 0; t < times; ++t) {
      model.stream().submit([&seen, t, step, micro, rank] {
        const Values before = t == 0 ? Values(rows * state_width, 0.0f) : seen[t - 1].y;
        seen[t].x = joined(before, input(input_width, step * int(times) + int(t), micro, rank));
      });
      const Values& y = model.forward(cell, seen[t].x);
      model.stream().submit([&seen, t, &y] { seen[t].y = y; });
    }
    model.stream().submit(
        [this, &seen, scale = model.loss_scale()] { dy = error(seen.back().y, seen.front().x, *scale); });
    for (std::size_t t = times; t-- > 0;) {
      // The layer looks at its own output: that of this time step again.
      model.stream().submit([this, &seen, t] { cell.y = seen[t].y; });
      const Values& dx = model.within(model.unit(0), plan::WindowKind::backward, [&](Window& window) -> const Values& {
        return cell.backward_of(window, seen[t].x, dy);
      });
      model.stream().submit([this, &dx] { dy = of_state(dx); });
    }
  }

  struct Cell : Layer {
    using Layer::Layer;
    const Values& backward_of(Window& window, const Values& x, const Values& gradient) {
      look_at(x);
      return backward(window, gradient);
    }
  };
  struct Time {
    Values x, y;
  };
  Cell cell{joined_width, state_width, rows};
  std::array<std::vector<Time>, 4> times_of;
  Values dy;
};

struct PlainRecurrent : PlainNet {
  PlainRecurrent() { layers.emplace("cell", plain::Layer("cell", joined_width, state_width)); }
  void pass(int step, std::size_t micro, int rank) override {
    plain::Layer& cell = layers.at("cell");
    std::vector<plain::Numbers> x(times), y(times);
    for (std::size_t t = 0; t < times; ++t) {
      const plain::Numbers before = t == 0 ? plain::Numbers(rows * state_width, 0.0) : y[t - 1];
      x[t] = joined(before, plain::numbers(input(input_width, step * int(times) + int(t), micro, rank)));
      y[t] = cell.forward(x[t]);
    }
    const Values first(x[0].begin(), x[0].end());
    plain::Numbers dy = error<double>(y.back(), first, 1.0);
    for (std::size_t t = times; t-- > 0;) dy = of_state(cell.backward(x[t], y[t], dy));
  }
};

// ---- training them ----

using MakeNet = std::function<std::unique_ptr<Net>()>;
using MakePlain = std::function<std::unique_ptr<PlainNet>()>;

struct Kind {
  std::string name;
  MakeNet net;
  MakePlain plain;
};
std::vector<Kind> kinds() {
  return {{"U-Net", [] { return std::make_unique<UNet>(); }, [] { return std::make_unique<PlainUNet>(); }},
          {"U-Net that recomputes", [] { return std::make_unique<UNet>(true); },
           [] { return std::make_unique<PlainUNet>(); }},
          {"mixture of experts", [] { return std::make_unique<Mixture>(); },
           [] { return std::make_unique<PlainMixture>(); }},
          {"recurrent net", [] { return std::make_unique<Recurrent>(); },
           [] { return std::make_unique<PlainRecurrent>(); }}};
}

using toy::Weights;

Weights train(const MakeNet& make, int ranks, const FullyShardOptions& options) {
  const AdamW adamw{.learning_rate = rate, .weight_decay = 0.0f};
  return toy::train_recorded(ranks, options, steps, adamw, [&](FullyShard& model) {
    std::unique_ptr<Net> net = make();
    net->add_to(model);
    return net;
  });
}

std::map<std::string, plain::Layer> train_plainly(const MakePlain& make, int ranks, std::size_t micro_batches) {
  const std::unique_ptr<PlainNet> net = make();
  for (int step = 0; step < steps; ++step) {
    for (auto& [name, layer] : net->layers) layer.clear();
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) net->pass(step, micro, rank);
    }
    const plain::Rule rule = plain::adamw(double(rate), step + 1);
    for (auto& [name, layer] : net->layers) layer.update(double(ranks) * double(micro_batches), rule);
  }
  return std::move(net->layers);
}

TEST_CASE("steps_of_any_form_train_as_in_a_plain_loop") {
  for (const Kind& kind : kinds()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const std::size_t micro_batches : {1u, 2u}) {
        FullyShardOptions options{.micro_batches = micro_batches};
        const Weights weights = train(kind.net, ranks, options);
        const auto expected = train_plainly(kind.plain, ranks, micro_batches);
        CHECK(weights.size() == 2 * expected.size());
        for (const auto& entry : expected) {
          INFO(kind.name << " on " << ranks << " ranks, " << micro_batches << " micro-batches: " << entry.first);
          plain::check_near(weights, entry.first, entry.second);
        }
      }
    }
  }
}

TEST_CASE("steps_of_any_form_are_bitwise_equal_between_strategies") {
  std::size_t turn = 0;
  for (const Kind& kind : kinds()) {
    for (const toy::Mesh& mesh : toy::flat_meshes_and_one_of_replicas()) {
      for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
        FullyShardOptions options{.strategy = Strategy::ddp, .replicas = mesh.replicas};
        options.micro_batches = mode == AccumulationMode::local ? 2 : 1;
        options.accumulation = mode;
        std::optional<Weights> reference;
        for (const Strategy strategy : mesh.strategies()) {
          // In turn, so that each strategy meets each depth.
          const std::size_t prefetch = std::array{0u, 1u, 3u}[++turn % 3];
          if (tests::sanitized && turn % 7 != 0) continue;
          if (!reference) reference = train(kind.net, mesh.ranks, options);
          INFO(kind.name << ", " << to_string(strategy) << " on " << mesh.ranks << " ranks, prefetch " << prefetch);
          options.strategy = strategy;
          options.prefetch = prefetch;
          options.reshard_after_forward = prefetch != 1;
          if (prefetch == 3) options.reshard_after_forward = Axis::shard;
          options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
          if (turn % 2 == 0) options.diagnostics.delay_seed = turn;
          CHECK(toy::same_bits(train(kind.net, mesh.ranks, options), *reference));
        }
      }
    }
  }
}

// ---- what is wrong ----

// A U-Net of which the program is known, and what a rank does with it.
std::string failure_with_levels(const std::function<void(FullyShard&, UNet&)>& body) {
  return failure_of(2, [&](World& world) {
    UNet net;
    FullyShard model(world, {});
    net.add_to(model);
    model.add_program({.pass = [&] { net.pass(model, 0, 0, world.rank()); }});
    model.finalize(AdamW{.learning_rate = rate});
    body(model, net);
  });
}

void check_levels(const std::string& part, const std::function<void(FullyShard&, UNet&)>& body) {
  CHECK(contains(failure_with_levels(body), part));
}

TEST_CASE("windows_inside_others_that_the_program_does_not_have_are_named") {
  using enum plan::WindowKind;
  check_levels(
      "the forward window of unit level0 cannot close: the forward window of unit level1 was expected "
      "inside it",
      [](FullyShard& model, UNet&) { model.open(model.unit(2), forward).close(); });
  check_levels("a window around it cannot close: the rank", [](FullyShard& model, UNet&) {
    Window outer = model.open(model.unit(2), forward);
    Window inner = model.open(model.unit(1), forward);
    outer.close();
  });
  check_levels("the forward window of unit level1 cannot open: the forward window of unit level2 is still open",
               [](FullyShard& model, UNet&) {
                 Window outer = model.open(model.unit(2), forward);
                 Window inner = model.open(model.unit(1), forward);
                 Window innermost = model.open(model.unit(0), forward);
                 model.open(model.unit(1), forward);
               });
  check_levels("forward window of unit level0: a forward window was asked for of a module that is no unit",
               [](FullyShard& model, UNet& net) {
                 Window outer = model.open(model.unit(2), forward);
                 outer.forward(net.outer.down, net.x[0]);
               });
  check_levels("level1", [](FullyShard& model, UNet& net) {
    Window outer = model.open(model.unit(2), forward);
    Window inner = model.open(model.unit(1), forward);
    inner.parameter(net.outer.down.weight);
  });
}

TEST_CASE("a_window_is_whole_while_one_is_open_inside_it_and_asks_whether_parts_are_units") {
  CHECK(failure_with_levels([](FullyShard& model, UNet& net) {
          using enum plan::WindowKind;
          Window outer = model.open(model.unit(2), forward);
          const float* const weight = outer.parameter(net.outer.down.weight).data();
          CHECK(outer.is_unit(*net.outer.inner));
          CHECK_FALSE(outer.is_unit(net.outer.down));
          Window inner = model.open(model.unit(1), forward);
          Window innermost = model.open(model.unit(0), forward);
          CHECK(innermost.unit() == "level2");
          CHECK(outer.unit() == "level0");
          CHECK(outer.parameter(net.outer.down.weight).data() == weight);
          CHECK(inner.parameter(net.outer.inner->up.bias).size() == widths[1]);
          innermost.close();
          CHECK_FALSE(innermost.is_open());
          inner.close();
          outer.close();
        }) == "");
}

TEST_CASE("an_exception_inside_an_inner_window_is_told_with_that_window") {
  struct Throwing : Module {
    void visit(ModuleVisitor& visitor) override { visitor("layer", layer); }
    void forward(Window& window, bool now) {
      static_cast<void>(window);
      if (now) throw DataError("no such picture");
    }
    Layer layer{2, 2, rows};
  };
  struct Around : Module {
    void visit(ModuleVisitor& visitor) override { visitor("layer", layer), visitor("part", part); }
    void forward(Window& window, bool now) { window.forward(part, now); }
    Throwing part;
    Layer layer{2, 2, rows};
  };
  const std::string text = failure_of(3, [](World& world) {
    Around around;
    FullyShard model(world, {.program = tests::program("f0 f1 b1 b0", "e1 e0 e1+")});
    model.add(around.part, "part");
    model.add(around, "around");
    model.finalize(AdamW{});
    if (world.rank() == 1) return model.evaluate(around, true);
    // The others hear where it was.
    while (true) {
      try {
        model.evaluate(around, false);
      } catch (const AbortedError& error) {
        CHECK(contains(error.what(), "evaluate window of unit part: no such picture"));
        throw;
      }
    }
  });
  CHECK(contains(text, "no such picture"));
}

// Whoever skips a unit skips what is inside its windows.
TEST_CASE("a_skipped_unit_takes_those_inside_it_along_if_they_are_optional") {
  using enum plan::WindowKind;
  for (const bool all_optional : {true, false}) {
    const std::string text = failure_of(2, [&](World& world) {
      UNet net;
      FullyShard model(world, {.program = tests::program("f2 f1 f0 f1+ f2+ b2 b1 b0 b1+ b2+")});
      model.add(*net.outer.inner->inner, UnitOptions{.name = "level2", .optional = all_optional});
      model.add(*net.outer.inner, UnitOptions{.name = "level1", .optional = true});
      model.add(net.outer, UnitOptions{.name = "level0", .optional = true});
      model.finalize(AdamW{.learning_rate = rate, .weight_decay = 0.0f});
      const Values before = model.whole(net.outer.down.weight);
      if (!all_optional) {
        CHECK_THROWS_WITH_AS(model.skip(net.outer, forward),
                             "unit level2 cannot be skipped with level0, inside which it opens: add it with "
                             "UnitOptions::optional",
                             UsageError);
      }
      if (world.rank() == 0 && all_optional) {
        model.skip(net.outer, forward);
        model.skip(net.outer, backward);
      } else {
        net.pass(model, 0, 0, 1);
      }
      model.update();
      CHECK_FALSE(toy::same_bits(model.whole(net.outer.down.weight), before));
      CHECK_FALSE(model.last_step().skipped);
    });
    CHECK(text == "");
  }
}

TEST_CASE("a_forward_pass_is_written_once_for_training_evaluation_and_recomputation") {
  using enum plan::WindowKind;
  launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [](World& world) {
    Layer body(5, 7, rows), head(7, 3, rows);
    FullyShard model(world, {});
    model.add(body, "body");
    model.add(head, "head");
    const Values x = input(5, 0, 0, world.rank()), dy(rows * 3, 0.5f);
    const auto net = [&](const Pass& pass) -> const Values& { return pass(head, pass(body, x)); };
    const auto train = [&] {
      net({model, forward});
      net({model, recompute});
      model.backward(body, model.backward(head, dy));
    };
    model.add_program({.pass = train, .evaluation_pass = [&] { net({model, evaluate}); }});
    model.finalize(AdamW{});
    CHECK(model.plan().programs.front().micro_batch == tests::windows("f0 f1 r0 r1 b1 b0"));
    const Values evaluated = net({model, evaluate});
    train();
    CHECK(toy::same_bits(head.y, evaluated));
    model.update();
    CHECK_THROWS_WITH_AS(Pass(model, backward)(body, x), doctest::Contains("call backward()"), UsageError);
  });
}

// The stream is behind the host here, and objects tell when they end.
TEST_CASE("what_a_window_keeps_stays_until_its_work_has_run") {
  struct Counted {
    explicit Counted(std::atomic<int>& count) : alive(&count) { ++*alive; }
    Counted(Counted&& other) noexcept : alive(other.alive), value(other.value) { ++*alive; }
    Counted& operator=(Counted&&) = delete;
    ~Counted() { --*alive, value = -1; }
    std::atomic<int>* alive;
    int value = 7;
  };
  std::atomic<int> alive = 0;
  std::atomic<bool> looked = false;
  launch({.ranks = 1}, [&](World& world) {
    UNet net;
    FullyShard model(world, {.diagnostics = {.queue_compute = true}});
    net.add_to(model);
    const auto pass = [&](bool looks) {
      Window outer = model.open(model.unit(2), plan::WindowKind::evaluate);
      const Counted& first = outer.keep(Counted(alive));
      net.x[0] = input(widths[1], 0, 0, 0);
      outer.forward(*net.outer.inner, net.x[0]);
      const Counted& second = outer.keep(Counted(alive));
      looked = !looks;
      outer.stream().submit([&first, &second, &looked] {
        while (!looked) std::this_thread::yield();
        CHECK(first.value + second.value == 14);
      });
      outer.close();
      if (looks) CHECK(alive == 2);
      looked = true;
    };
    model.add_program({.pass = [&] { net.pass(model, 0, 0, 0); }, .evaluation_pass = [&] { pass(false); }});
    model.finalize(AdamW{});
    CHECK(alive == 0);  // of what was recorded
    pass(true);
    model.synchronize();
    CHECK(alive == 0);
    pass(true);  // and the model ends
  });
  CHECK(alive == 0);
}

// Fewer micro-batches, none, an evaluation, a trace: what opens windows itself, or counts them, knows those inside.
TEST_CASE("short_and_skipped_steps_evaluations_and_traces_have_windows_inside_windows_too") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [](World& world) {
    UNet net;
    FullyShard model(world, {.micro_batches = 2});
    net.add_to(model);
    const auto evaluate = [&] { return model.evaluate(net.outer, net.x[0]); };
    net.x[0] = input(widths[0], 0, 0, world.rank());
    model.add_program({.pass = [&] { net.pass(model, 0, 0, world.rank()); }, .evaluation_pass = evaluate});
    model.finalize(AdamW{.learning_rate = rate});
    Trace trace = model.trace({.first = 1, .last = 2});
    net.pass(model, 0, 0, world.rank());
    if (world.rank() == 0) net.pass(model, 0, 1, world.rank());
    model.update();
    net.x[0] = input(widths[0], 1, 0, world.rank());
    const Values evaluated = evaluate();
    model.synchronize();
    net.pass(model, 1, 0, world.rank());
    model.synchronize();
    CHECK(toy::same_bits(net.outer.up.y, evaluated));
    model.update();
    model.skip_step();
    model.synchronize();
    CHECK(model.finished());
  });
}

}  // namespace any_step_test
