// Optimizers train as torch's of the same settings do, and with the same bits under every strategy.
#include "networks.hpp"

#include <cmath>

namespace optimizers_test {

using networks::Parameters;
using tessera::Strategy;

template <typename Torch, typename Settings, typename Options>
networks::Optimizers pair(Settings settings, Options options) {
  return {.sharded = [settings](float) { return std::unique_ptr<tessera::Optimizer>(settings); },
          .plain = [options](Parameters all) -> std::unique_ptr<torch::optim::Optimizer> {
            return std::make_unique<Torch>(std::move(all), options);
          }};
}

struct Case {
  std::string name;
  networks::Optimizers optimizers;
};
std::vector<Case> cases() {
  namespace optim = torch::optim;
  return {
      {"adam", pair<optim::Adam>(tessera::Adam{.learning_rate = 0.01f, .weight_decay = 0.1f},
                                 optim::AdamOptions(0.01).weight_decay(0.1))},
      {"rmsprop", pair<optim::RMSprop>(tessera::RmsProp{.learning_rate = 0.002f, .weight_decay = 0.1f},
                                       optim::RMSpropOptions(0.002).weight_decay(0.1))},
      {"centered rmsprop with momentum",
       pair<optim::RMSprop>(
           tessera::RmsProp{.learning_rate = 0.002f, .alpha = 0.9f, .momentum = 0.5f, .centered = true},
           optim::RMSpropOptions(0.002).alpha(0.9).momentum(0.5).centered(true))},
      {"adagrad",
       pair<optim::Adagrad>(
           tessera::Adagrad{.learning_rate = 0.02f, .rate_decay = 0.1f, .weight_decay = 0.1f, .initial = 0.1f},
           optim::AdagradOptions(0.02).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.1))},
      {"sgd with dampening",
       pair<optim::SGD>(tessera::Sgd{.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .dampening = 0.5f},
                        optim::SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.01))},
      {"sgd with nesterov", pair<optim::SGD>(tessera::Sgd{.learning_rate = 0.05f, .momentum = 0.9f, .nesterov = true},
                                             optim::SGDOptions(0.05).momentum(0.9).nesterov(true))},
  };
}

TEST_CASE("optimizers_have_torchs_values_and_the_same_bits_under_every_strategy") {
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    networks::Run run{.kind = networks::all_kinds()[0], .ranks = 1, .steps = 20, .optimizers = each.optimizers};
    const std::vector<float> plain = networks::plain_losses(run);
    const networks::Result own = networks::train(run);
    REQUIRE(own.losses.size() == plain.size());
    for (std::size_t step = 0; step < plain.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(own.losses[step] - plain[step]) <= 1e-6f * plain[step]);
    }
    CHECK(own.losses.back() != own.losses.front());
    run.ranks = 3;
    run.options.strategy = Strategy::ddp;
    const networks::Result reference = networks::train(run);
    run.options.strategy = Strategy::fsdp;
    CHECK(networks::train(run) == reference);
  }
}

}  // namespace optimizers_test
