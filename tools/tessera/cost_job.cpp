// `tessera cost job`: batch, steps, time and learning rate of a data-parallel job.
#include <fmt/format.h>

#include <optional>

#include "commands.hpp"
#include "cost/job.hpp"
#include "cost/quantity.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "text.hpp"

namespace tools {

namespace cost_job {

constexpr const char* description = "Batch, steps, time and learning rate of a data-parallel training job.";
constexpr const char* footer =
    "Example: ImageNet on four GPUs, 936 samples per second and 22.8 minutes per epoch.\n"
    "  tessera cost job --samples 1280000 --batch 256 --ranks 4 --throughput 200 --precision-gain 0.3 --overhead 0.1 "
    "\\\n"
    "    --lr 0.1 --epochs 90\n\n"
    "Samples per second are ranks * throughput * (1 + precision gain) * (1 - overhead). The learning rate grows with "
    "the\n"
    "batch, after a warm-up of 5 epochs (Goyal et al. 2017); for Adam with its square root (Malladi et al. 2022).";

struct Request {
  cost::Job job{.samples = 1, .batch = 1, .ranks = 1, .throughput = 1};
  std::optional<double> learning_rate;
  bool json = false;
};

std::optional<Request> parse(std::vector<std::string> arguments) {
  Request request;
  cost::Job& job = request.job;
  CostLine line("job", description, footer);
  line.whole({"--samples", "N", "In the data set: 1280000 or 1.28M", true}, job.samples, cost::count);
  line.whole({"--batch", "N", "Samples of each rank in a step", true}, job.batch, cost::count);
  line.whole({"--ranks", "N", "Ranks", true}, job.ranks, cost::rank_count);
  line.number({"--throughput", "RATE", "Samples per second of one rank alone, in fp32", true}, job.throughput,
              cost::sample_rate);
  line.number({"--precision-gain", "PART", "What half precision adds to that: 0.3 or 30% [0]"}, job.precision_gain,
              cost::gain);
  line.number({"--overhead", "PART", "What communication takes from it: 0.1 or 10% [0]"}, job.overhead, cost::part);
  line.whole({"--epochs", "N", "Passes over the data set [1]"}, job.epochs, cost::epoch_count);
  line.number({"--lr", "RATE", "Learning rate that is good for one rank's batch"}, request.learning_rate,
              cost::learning_rate);
  line.json(request.json);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  return request;
}

cost::LearningRate rates_of(const Request& request) {
  return cost::scaled(*request.learning_rate, static_cast<double>(request.job.ranks));
}

std::uint64_t warm_up_steps(const cost::JobCost& cost) { return cost::warm_up_epochs * cost.steps_per_epoch; }

std::string row(std::string_view name, const std::string& value, const std::string& what) {
  return fmt::format("{:<18} {:>14}  {}\n", name, value, what);
}

// Six digits, and no exponent for what is large.
std::string number_text(double number) {
  return number < 1e5 ? fmt::format("{:.6g}", number) : fmt::format("{:.0f}", number);
}

std::string throughput_text(const cost::Job& job) {
  return fmt::format("samples/s = {} x {:g} x {:g} x {:g}", job.ranks, job.throughput, 1 + job.precision_gain,
                     1 - job.overhead);
}

std::string learning_text(const Request& request, const cost::JobCost& cost) {
  const cost::LearningRate rates = rates_of(request);
  const double base = *request.learning_rate;
  std::string text = "\n";
  text += row("learning rate", fmt::format("{:.4g}", rates.linear),
              fmt::format("= {} x {:g}, in proportion to the batch (SGD)", request.job.ranks, base));
  text += row("warm-up", grouped(warm_up_steps(cost)),
              fmt::format("steps ({} epochs), from {:g} up to it", cost::warm_up_epochs, base));
  text += row("with Adam", fmt::format("{:.4g}", rates.square_root),
              fmt::format("= sqrt({}) x {:g}, the square-root rule", request.job.ranks, base));
  if (request.job.epochs <= cost::warm_up_epochs)
    text += "note: that warm-up would be the whole job; choose a shorter one\n";
  if (cost.global_batch > cost::largest_proved_batch)
    text += fmt::format("note: beyond a batch of {} images Goyal et al. saw the accuracy fall\n",
                        grouped(cost::largest_proved_batch));
  return text;
}

std::string text_of(const Request& request) {
  const cost::Job& job = request.job;
  const cost::JobCost cost = cost_of(job);
  std::string text =
      row("global batch", grouped(cost.global_batch), fmt::format("samples = {} x {}", job.ranks, grouped(job.batch)));
  text += row("steps per epoch", grouped(cost.steps_per_epoch), fmt::format("for {} samples", grouped(job.samples)));
  text += row("throughput", number_text(cost.samples_per_second), throughput_text(job));
  text += row("time per epoch", number_text(cost.seconds_per_epoch) + " s",
              fmt::format("= {}", cost::seconds_text(cost.seconds_per_epoch)));
  text += row("time of the job", cost::seconds_text(cost.seconds),
              fmt::format("for {} epochs, {} steps", grouped(job.epochs), grouped(cost.steps)));
  return request.learning_rate ? text + learning_text(request, cost) : text;
}

Json json_of(const Request& request) {
  const cost::Job& job = request.job;
  const cost::JobCost cost = cost_of(job);
  Json object = {{"samples", job.samples},
                 {"batch", job.batch},
                 {"ranks", job.ranks},
                 {"throughput", job.throughput},
                 {"precision_gain", job.precision_gain},
                 {"overhead", job.overhead},
                 {"epochs", job.epochs},
                 {"global_batch", cost.global_batch},
                 {"steps_per_epoch", cost.steps_per_epoch},
                 {"steps", cost.steps},
                 {"samples_per_second", cost.samples_per_second},
                 {"seconds_per_epoch", cost.seconds_per_epoch},
                 {"seconds", cost.seconds}};
  if (!request.learning_rate) return object;
  const cost::LearningRate rates = rates_of(request);
  object["learning_rate"] = {{"base", *request.learning_rate},
                             {"linear", rates.linear},
                             {"square_root", rates.square_root},
                             {"warm_up_epochs", cost::warm_up_epochs},
                             {"warm_up_steps", warm_up_steps(cost)}};
  return object;
}

}  // namespace cost_job

bool run_cost_job(std::vector<std::string> arguments) {
  using namespace cost_job;
  const auto request = parse(std::move(arguments));
  if (!request) return true;
  fmt::print("{}", request->json ? object_text(json_of(*request)) : text_of(*request));
  return true;
}

}  // namespace tools
