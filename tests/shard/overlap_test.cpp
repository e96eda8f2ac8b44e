// A window goes on while a collective of it overlaps: what came is there once it is collected, in every test mode and
// next to another that is on its way, and who asks in another order is told.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/shard/trace.hpp"
#include "toy_model.hpp"

namespace overlap_test {

using namespace tessera;

constexpr std::size_t elements = 300;

struct Layer final : Module {
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight), visitor("all", all), visitor("sum", sum), visitor("last", last);
  }
  static float value(std::size_t rank, std::size_t i) { return std::cos(float(7 * i + 3 * rank)); }

  void forward(Window& window, std::size_t rank) {
    const auto bring = [&](const Collective& collective, std::size_t from) {
      window.stream().submit([to = window.contribution<float>(collective), rank, from] {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = value(rank, from + i);
      });
    };
    bring(all, 0);
    window.begin<float>(all);
    bring(sum, elements);
    const Collected<float> gathered = window.collect<float>(all);
    window.begin<float>(sum);
    window.stream().submit([this, gathered] {
      came.clear();
      for (std::size_t r = 0; r < gathered.ranks(); ++r)
        came.insert(came.end(), gathered.of(r), gathered.of(r) + elements);
    });
    const Collected<float> mine = window.collect<float>(sum);
    window.stream().submit([this, mine] { came.insert(came.end(), mine.first, mine.first + elements); });
    bring(last, 0);
    window.collect<float>(last);
  }
  void backward(Window& window) {  // in a task: where compute is queued, gradients are its stream's
    window.stream().submit([gradient = window.gradient(weight)] { std::ranges::fill(gradient, 0.0f); });
  }
  std::vector<float> expected(std::size_t rank, std::size_t ranks, std::size_t brought) const {
    std::vector<float> result;
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < elements; ++i) result.push_back(r < brought ? value(r, i) : 0.0f);
    for (std::size_t i = 0; i < elements; ++i) {
      float total = 0;
      for (std::size_t r = 0; r < brought; ++r) total += value(r, elements * (1 + rank) + i);
      result.push_back(total);
    }
    return result;
  }

  Parameter weight{{5}, Initial::ones()};
  Collective all{elements, {.type = DType::fp32, .backward = false, .overlaps = true}};
  Collective sum{elements,
                 {.kind = CollectiveKind::reduce_scatter, .type = DType::fp32, .backward = false, .overlaps = true}};
  Collective last{3, {.type = DType::fp32, .backward = false}};
  std::vector<float> came;
};

TEST_CASE("collectives_that_overlap_bring_what_others_do") {
  for (const std::size_t ranks : {1, 3}) {
    for (const bool queued : {false, true}) {
      launch({.ranks = static_cast<int>(ranks)}, [&](World& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        Layer layer;
        FullyShard model(world,
                         {.micro_batches = 2,
                          .diagnostics = {.delay_seed = 7, .poison = true, .touch = true, .queue_compute = queued}});
        model.add(layer, "layer");
        model.finalize(Sgd{.learning_rate = 0.1f});
        Trace trace = model.trace({.first = 2, .last = 2, .next = 1});
        for (int step = 0; step < 3; ++step) {
          const bool skips = step == 1 && ranks > 1;  // the last rank, which brings zeros
          if (skips && rank + 1 == ranks) {
            model.skip_step();
            continue;
          }
          for (int micro = 0; micro < 2; ++micro) {
            model.forward(layer, rank);
            model.synchronize();
            CHECK(layer.came == layer.expected(rank, ranks, skips ? ranks - 1 : ranks));
            model.backward(layer);
          }
          model.update();
        }
        CHECK(trace.complete());
      });
    }
  }
}

TEST_CASE("collectives_that_overlap_come_in_their_turn") {
  const auto check = [](const char* part, const std::function<void(Window&, Layer&)>& body) {
    toy::check_failure(part, 2, [&](World& world) {
      struct Told final : Module {
        void visit(ModuleVisitor& visitor) override { layer.visit(visitor); }
        void forward(Window& window, const std::function<void(Window&, Layer&)>& call) { call(window, layer); }
        Layer layer;
      } told;
      toy::Model model(world, {}, Sgd{.learning_rate = 0.1f}, told);
      model.forward(told, body);
    });
  };
  const auto begin = [](Window& window, Collective& which) { window.begin<float>(which); };
  check("layer.all has begun, and was not collected before layer.sum begins",
        [&](Window& w, Layer& l) { begin(w, l.all), begin(w, l.sum); });
  check("layer.all came, and layer.sum was expected", [&](Window& w, Layer& l) { begin(w, l.all), begin(w, l.all); });
  check("layer.sum has begun, and was not collected before layer.last is written", [&](Window& w, Layer& l) {
    begin(w, l.all), w.collect<float>(l.all);
    begin(w, l.sum), w.contribution<float>(l.last), w.collect<float>(l.last);
  });
  check("layer.last does not overlap (CollectiveOptions): collect() it",
        [&](Window& w, Layer& l) { w.collect<float>(l.all), w.collect<float>(l.sum), begin(w, l.last); });
  check("layer.all has begun, and was not collected before it closes", [&](Window& w, Layer& l) { begin(w, l.all); });
}

}  // namespace overlap_test
