// Units that recompute by their setting (UnitOptions::recompute): the bits of a pass that keeps everything, in chains,
// in each other, at several time steps and in what ranks skip.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace recompute_test {

using namespace tessera;
using plan::WindowKind;
using plan::WindowUse;
using toy::contains;
using toy::failure_of;
using toy::Values;
using enum WindowKind;

constexpr std::size_t rows = 3, width = 7;
constexpr int steps = 3;

using toy::Weights;

// A toy layer that loses what it kept as soon as somebody else computes: `y`, which backward reads, is one for all.
// forward() is given its input by value, as views are, and counts how often it ran.
struct Block : Module {
  explicit Block(Values& shared) : layer(width, width, rows), scratch(shared) {}
  void visit(ModuleVisitor& visitor) override { visitor("layer", layer); }

  struct View {
    const Values* values;
  };
  View forward(Window& window, View x, Values& y) {
    const Values& computed = layer.forward(window, *x.values);
    ++calls[std::size_t(window.kind())];
    forgets = window.recomputes();
    window.stream().submit([this, &computed, &y] { y = scratch = computed; });
    return {&y};
  }
  // The gradient of y becomes that of x, in place.
  void backward(Window& window, Values& dy) {
    window.stream().submit([this] { layer.y = scratch; });
    const Values& dx = layer.backward(window, dy);
    window.stream().submit([&dx, &dy] { dy = dx; });
  }

  toy::Layer<float> layer;
  Values& scratch;
  std::array<int, 4> calls{};
  bool forgets = false;
};

// Around a block that is a unit of its own.
struct Around : Module {
  explicit Around(Values& shared) : before(shared), inner(shared) {}
  void visit(ModuleVisitor& visitor) override { visitor("before", before), visitor("inner", inner); }
  void forward(Window& window, Block::View x, Values& y) {
    window.forward(inner, before.forward(window, x, between), y);
  }
  void backward(Window& window, Values& dy) {
    window.backward(inner, dy);
    // The inner window's recomputation has taken the place of what this one left.
    window.stream().submit([this] { before.scratch = between; });
    before.backward(window, dy);
  }
  Block before, inner;
  Values between;
};

enum class Again { no, by_setting };
UnitOptions named(const std::string& name, Again again) {
  return {.name = name, .recompute = again == Again::by_setting};
}

// ---- what they train ----

struct Net {
  virtual ~Net() = default;
  virtual void add_to(FullyShard& model, Again again) = 0;
  virtual void pass(FullyShard& model, int step, std::size_t micro, int rank) = 0;

  Values& input(int step, std::size_t micro, int rank) {
    return x[micro] = toy::sample(rows * width, step, micro, rank, 0);
  }
  Values& error(FullyShard& model, const Values& y, std::size_t micro) {
    model.stream().submit([&dy = dy[micro], &y, scale = model.loss_scale()] {
      dy = y;
      for (float& each : dy) each = (each - 0.5f) * *scale;
    });
    return dy[micro];
  }
  std::array<Values, 2> x, dy;
};

// Each block has an own scratch where all is kept, and one for all where it is computed again.
struct Chain : Net {
  static constexpr std::size_t blocks = 4;
  void add_to(FullyShard& model, Again again) override {
    for (std::size_t b = 0; b < blocks; ++b) {
      block.push_back(std::make_unique<Block>(scratch[again == Again::no ? b : 0]));
    }
    for (std::size_t b = 0; b < blocks; ++b) model.add(*block[b], named("block" + std::to_string(b), again));
  }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    Block::View view{&input(step, micro, rank)};
    // One variable for all views: what forward() was given is kept, not where it stood.
    for (std::size_t b = 0; b < blocks; ++b) view = model.forward(*block[b], view, y[micro][b]);
    Values& gradient = error(model, y[micro][blocks - 1], micro);
    for (std::size_t b = blocks; b-- > 0;) model.backward(*block[b], gradient);
  }
  std::array<Values, blocks> scratch;
  std::vector<std::unique_ptr<Block>> block;
  std::array<std::array<Values, blocks>, 2> y;
};

// Nested, twice each: once as a part, and once for itself, so that several calls of one unit are open.
struct Nested : Net {
  explicit Nested(bool inner_too) : inner_too_(inner_too) {}
  void add_to(FullyShard& model, Again again) override {
    // Without recomputation this net needs a scratch for each use, so it is trained in passes that recompute by hand.
    model.add(around.inner, named("inner", inner_too_ ? again : Again::no));
    model.add(around, named("around", again));
    by_hand_ = again == Again::no;
  }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    Values& in = input(step, micro, rank);
    const auto inner = [&](WindowKind kind) { model.pass(kind, around.inner, Block::View{&in}, y[micro][0]); };
    const auto outer = [&](WindowKind kind) { model.pass(kind, around, Block::View{&y[micro][0]}, y[micro][1]); };
    inner(forward);
    outer(forward);
    Values& gradient = error(model, y[micro][1], micro);
    if (by_hand_) outer(recompute);
    if (inner_too_ && by_hand_) {
      model.within(model.unit(1), backward, [&](Window& window) {
        window.forward(around.inner, Block::View{&around.between}, y[micro][1]);
        around.backward(window, gradient);
      });
    } else {
      model.backward(around, gradient);
    }
    if (by_hand_ || !inner_too_) {
      // Its first call's values: by hand, too, where it does not recompute.
      inner(recompute);
    }
    model.backward(around.inner, gradient);
  }
  Values scratch;
  Around around{scratch};
  std::array<std::array<Values, 2>, 2> y;
  bool inner_too_;
  bool by_hand_ = false;
};

// One unit at each time step.
struct Recurrent : Net {
  static constexpr std::size_t times = 3;
  void add_to(FullyShard& model, Again again) override {
    keeps_ = again == Again::no;
    model.add(cell, named("cell", again));
  }
  void pass(FullyShard& model, int step, std::size_t micro, int rank) override {
    const Values* in = &input(step, micro, rank);
    for (std::size_t t = 0; t < times; ++t) {
      model.forward(cell, Block::View{in}, y[micro][t]);
      in = &y[micro][t];
    }
    Values& gradient = error(model, y[micro][times - 1], micro);
    for (std::size_t t = times; t-- > 0;) {
      if (keeps_) {
        model.stream().submit([this, micro, t] { cell.scratch = y[micro][t]; });
        cell.layer.look_at(t == 0 ? x[micro] : y[micro][t - 1]);
      }
      model.backward(cell, gradient);
    }
  }
  Values scratch;
  Block cell{scratch};
  std::array<std::array<Values, times>, 2> y;
  bool keeps_ = false;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Net>()> make;
};
std::vector<Kind> kinds() {
  return {{"chain", [] { return std::make_unique<Chain>(); }},
          {"outer one", [] { return std::make_unique<Nested>(false); }},
          {"both of nested units", [] { return std::make_unique<Nested>(true); }},
          {"recurrent net", [] { return std::make_unique<Recurrent>(); }}};
}

Weights train(const Kind& kind, Again again, int ranks, const FullyShardOptions& options) {
  return toy::train_recorded(ranks, options, steps, {.learning_rate = 0.02f}, [&](FullyShard& model) {
    std::unique_ptr<Net> net = kind.make();
    net->add_to(model, again);
    return net;
  });
}

TEST_CASE("units_that_recompute_have_the_bits_of_those_that_keep") {
  for (const Kind& kind : kinds()) {
    for (const int ranks : {1, 3}) {
      FullyShardOptions options{.strategy = Strategy::ddp};
      options.micro_batches = ranks == 1 ? 1 : 2;
      options.accumulation = AccumulationMode::reduced;
      const Weights kept = train(kind, Again::no, ranks, options);
      for (const Strategy strategy : flat_strategies) {
        INFO(kind.name << ", " << to_string(strategy) << " on " << ranks << " ranks");
        options.strategy = strategy;
        options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
        CHECK(toy::same_bits(train(kind, Again::by_setting, ranks, options), kept));
      }
    }
  }
}

TEST_CASE("the_setting_alone_makes_a_chain_recompute") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [](World& world) {
    Chain net;
    FullyShard model(world, {});
    net.add_to(model, Again::by_setting);
    model.finalize(AdamW{});  // no program: the chain of the units
    const std::vector<WindowUse>& windows = model.plan().programs.front().micro_batch;
    CHECK(windows.size() == 3 * Chain::blocks);
    CHECK(windows[Chain::blocks] == WindowUse{Chain::blocks - 1, recompute});
    for (int step = 0; step < 2; ++step) {
      net.pass(model, step, 0, world.rank());
      CHECK(net.block[1]->forgets == false);  // in the recompute window, which came last
      model.update();
      model.synchronize();
    }
    CHECK(net.block[1]->calls == std::array<int, 4>{2, 0, 2, 0});
    Values y;
    model.forward(*net.block[0], Block::View{&net.x[0]}, y);
    CHECK(net.block[0]->forgets);
    model.synchronize();
  });
}

// A mixture of two experts that recompute, of which each rank computes one.
TEST_CASE("what_is_skipped_is_not_computed_again") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [](World& world) {
    Values scratch;
    Block mine(scratch), others(scratch);
    Block& first = world.rank() == 0 ? mine : others;
    Block& second = world.rank() == 0 ? others : mine;
    FullyShard model(world, {});
    model.add(first, UnitOptions{.name = "first", .recompute = true, .optional = true});
    model.add(second, UnitOptions{.name = "second", .recompute = true, .optional = true});
    const Values x(rows * width, 0.25f);
    Values y, dy(rows * width, 0.5f);
    const auto pass = [&] {
      for (Block* block : {&first, &second}) {
        block == &mine ? void(model.forward(*block, Block::View{&x}, y)) : model.skip(*block, forward);
      }
      for (Block* block : {&second, &first}) {
        block == &mine ? model.backward(*block, dy) : model.skip(*block, backward);
      }
    };
    model.add_program({.pass = pass});
    model.finalize(AdamW{});
    mine.calls = {};
    pass();
    model.update();
    CHECK(model.last_step().updates == 1);
    CHECK(mine.calls == std::array<int, 4>{1, 0, 1, 0});
    CHECK(others.calls == std::array<int, 4>{});
  });
}

std::string failure_with_chain(const std::function<void(FullyShard&, Chain&)>& body) {
  return failure_of(1, [&](World& world) {
    Chain net;
    FullyShard model(world, {});
    net.add_to(model, Again::by_setting);
    model.finalize(AdamW{});
    body(model, net);
  });
}

TEST_CASE("what_does_not_go_with_the_setting_is_refused") {
  const auto check_chain = [](const std::string& part, const std::function<void(FullyShard&, Chain&)>& body) {
    CHECK(contains(failure_with_chain(body), part));
  };
  Values y, dy(rows * width);
  const Values x(rows * width);
  const auto forward_all = [&](FullyShard& model, Chain& net) {
    for (auto& block : net.block) model.forward(*block, Block::View{&x}, y);
  };
  check_chain("unit block3 computes its forward pass again by itself (UnitOptions::recompute)",
              [&](FullyShard& model, Chain& net) {
                forward_all(model, net);
                model.recompute(*net.block.back(), Block::View{&x}, y);
              });
  check_chain("no call of forward() of it is left in this pass: where its windows are opened by hand",
              [&](FullyShard& model, Chain& net) {
                for (std::size_t b = 0; b < Chain::blocks; ++b) model.open(model.unit(b), forward).close();
                model.backward(*net.block.back(), dy);
              });
  check_chain("the recompute window of unit block3 was expected", [&](FullyShard& model, Chain& net) {
    forward_all(model, net);
    model.open(model.unit(Chain::blocks - 1), backward);
  });
  // A pass by hand leaves all of it to the caller.
  CHECK(failure_with_chain([&](FullyShard& model, Chain& net) {
          forward_all(model, net);
          model.open(model.unit(Chain::blocks - 1), recompute).close();
          model.within(model.unit(Chain::blocks - 1), backward,
                       [&](Window& window) { net.block.back()->backward(window, dy); });
        }) == "");
}

TEST_CASE("a_backward_window_that_is_refused_leaves_the_call_to_be_made_again") {
  enum class Tried { backward, skip };
  for (const Tried tried : {Tried::backward, Tried::skip}) {
    CHECK(failure_of(1, [&](World& world) {
            const Values x(rows * width);
            Values y, dy(rows * width), scratch;
            Block first(scratch), second(scratch);
            FullyShard model(world, {});
            model.add(first, {.name = "first", .recompute = true, .optional = true});
            model.add(second, "second");
            model.finalize(AdamW{});
            model.forward(second, model.forward(first, Block::View{&x}, y), y);
            const auto out_of_order = [&] {
              tried == Tried::skip ? model.skip(first, backward) : model.backward(first, dy);
            };
            CHECK_THROWS_WITH_AS(out_of_order(), doctest::Contains("the backward window of unit second was expected"),
                                 UsageError);
            model.backward(second, dy);
            model.backward(first, dy);
            model.update();
          }) == "");
  }
}

TEST_CASE("temporaries_that_cannot_be_copied_are_refused_where_they_would_be_needed_again") {
  struct Taking : Module {
    void visit(ModuleVisitor& visitor) override { visitor("layer", layer); }
    void forward(Window&, std::unique_ptr<int>) {}
    void backward(Window&) {}
    toy::Layer<float> layer{2, 2, rows};
  };
  for (const bool recomputes : {false, true}) {
    const std::string text = failure_of(1, [&](World& world) {
      Taking taking;
      FullyShard model(world, {});
      model.add(taking, UnitOptions{.name = "taking", .recompute = recomputes});
      model.finalize(AdamW{});
      model.forward(taking, std::make_unique<int>(1));
    });
    CHECK(contains(text, recomputes ? "a temporary that cannot be copied" : ""));
    CHECK((text == "") != recomputes);
  }
}

// ---- the calls themselves ----

TEST_CASE("calls_inside_one_that_is_made_again_are_forgotten") {
  struct Numbered {
    void forward(Window&, int number) { last = number; }
    int last = 0;
  };
  launch({.ranks = 1}, [](World& world) {
    toy::Layer<float> layer(2, 2, rows);
    FullyShard model(world, {});
    Unit& unit = model.add(layer, "layer");
    model.finalize(AdamW{});
    Window window = model.open(unit, forward);  // any

    Numbered module;
    KeptCalls calls;
    const auto keep = [&](std::size_t of, int number) { calls.keep<Numbered, int>(of, module, number); };
    const auto made = [&](std::size_t of) {
      calls.take(of, "u").make(window);
      return module.last;
    };
    keep(1, 10);
    {
      int number = 20;
      const KeptCalls::Scope outer = calls.keep<Numbered, int>(0, module, number);
      keep(1, 21);
      keep(1, 22);
    }
    keep(2, 30);
    CHECK(made(0) == 20);
    CHECK(made(1) == 10);
    CHECK(made(2) == 30);
    CHECK_THROWS_AS(calls.take(1, "u"), UsageError);
    calls.keep_none(3);
    CHECK_THROWS_WITH_AS(calls.take(3, "u"), doctest::Contains("was skipped in the forward pass"), UsageError);
    window.close();
  });
}

}  // namespace recompute_test
