// The loop of all models. A subject is a model with its batch:
//   Subject(options, rank); activations(), program() for the plan; add_to(model); use(memory); train(model, loss)
#pragma once

#include <memory>
#include <optional>

#include "measure/timing.hpp"
#include "step/timed_optimizer.hpp"
#include "step/training.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace bench {

template <typename Subject>
StepTimes train_subject(tessera::World& world, const StepOptions& options) {
  float loss = 0.0f;
  OptimizerTime optimizer;
  Subject subject(options, world.rank());
  tessera::FullyShard model(world, {.strategy = options.strategy,
                                    .precision = options.precision,
                                    .program = subject.program(),
                                    .activations = subject.activations()});
  subject.add_to(model);
  model.finalize(std::make_unique<TimedOptimizer>(tessera::AdamW{.learning_rate = learning_rate}, optimizer));
  subject.use(model.activation_memory());
  if (options.weights) tessera::dump_weights(model, *options.weights);
  std::optional<tessera::Trace> trace;
  if (options.trace) trace = model.trace({.first = options.warm_up + 1, .last = options.warm_up + options.steps});
  StepTimes times;
  for (std::size_t step = 0; step < options.warm_up + options.steps; ++step) {
    optimizer.seconds = 0.0;
    const Clock::time_point start = Clock::now();
    subject.train(model, &loss);
    model.update();
    if (model.last_step().skipped) throw tessera::InternalError("a step's gradient was not finite");
    times.losses.push_back(world.average(loss, "loss"));
    if (step < options.warm_up) continue;
    times.seconds.push_back(seconds_since(start));
    times.optimizer.push_back(optimizer.seconds);
  }
  if (trace) trace->write(*options.trace);
  return times;
}

template <template <typename> typename Subject>
StepTimes train_in(tessera::World& world, const StepOptions& options) {
  return tessera::nn::with_element(
      options.precision, [&](auto element) { return train_subject<Subject<decltype(element)>>(world, options); });
}

}  // namespace bench
