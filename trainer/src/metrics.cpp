// Metrics as JSON lines.
#include "trainer/src/metrics.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.hpp"
#include "trainer/src/rank_metrics.hpp"
#include "trainer/src/weights_hash.hpp"

namespace tessera::trainer {

namespace {

std::string bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return fmt::format("{:08x}", bits);
}

std::string bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return fmt::format("{:016x}", bits);
}

// Returns the step that a line of metrics is of; nothing for a line that is none.
std::optional<std::uint64_t> step_of(const std::string& line) {
  try {
    return tools::Json::parse(line).at("step").whole();
  } catch (const tools::JsonError&) {
    return std::nullopt;
  }
}

}  // namespace

tools::Json to_json(const StepMetrics& metrics, const WorkUnit& unit, const tools::Json& memory) {
  tools::Json object = {
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"loss_bits", bits_of(metrics.loss)},
      {"grad_norm", metrics.gradient_norm},
      {"grad_norm_bits", bits_of(metrics.gradient_norm)},
      {"lr", metrics.learning_rate},
      {"samples", metrics.samples},
      {"step_seconds", metrics.seconds},
      {"samples_per_second", metrics.samples_per_second()},
  };
  if (unit.per_sample != 1) object[fmt::format("{}_per_second", unit.name)] = metrics.units_per_second(unit);
  if (metrics.loss_scale) {
    object["loss_scale"] = *metrics.loss_scale;
    object["skipped"] = metrics.skipped;
  }
  if (metrics.accuracy) object["accuracy"] = *metrics.accuracy;
  if (metrics.top5_accuracy) object["top5_accuracy"] = *metrics.top5_accuracy;
  if (metrics.held_out_loss) {
    object["held_out_loss"] = *metrics.held_out_loss;
    object["held_out_loss_bits"] = bits_of(*metrics.held_out_loss);
  }
  if (metrics.held_out_samples) object["held_out_samples"] = *metrics.held_out_samples;
  if (!metrics.weights.empty()) {
    object["weights_hash"] = fmt::format("{:016x}", whole_hash(metrics.weights));
    tools::Json& tensors = object["tensor_hashes"] = tools::Json::object();
    for (const TensorHash& tensor : metrics.weights) tensors.append(tensor.name, fmt::format("{:016x}", tensor.hash));
  }
  if (!metrics.ranks.empty()) object["ranks"] = to_json(metrics.ranks);
  if (memory.is_object()) object["memory"] = memory;
  return object;
}

MetricsFile::MetricsFile(std::filesystem::path path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "a")) {
  if (file_) return;
  throw tessera::DataError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
}

void MetricsFile::keep_first(std::size_t steps) {
  // A pipe or a terminal keeps nothing, and reading it would wait.
  if (!std::filesystem::is_regular_file(path_)) return;
  std::ifstream lines(path_);
  std::uintmax_t kept = 0;
  std::size_t number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    // A killed run may have left a part of its last line, which counts as nothing.
    if (lines.eof()) break;
    const std::optional<std::uint64_t> step = step_of(line);
    if (!step) {
      throw tessera::DataError(fmt::format(
          "{}: line {} is not a step's metrics, so this run cannot go on with it: choose another file for --metrics",
          path_.string(), number));
    }
    if (*step > steps) break;
    kept += line.size() + 1;
  }
  shorten(kept);
}

void MetricsFile::empty() {
  if (std::filesystem::is_regular_file(path_)) shorten(0);
}

void MetricsFile::shorten(std::uintmax_t size) {
  std::error_code error;
  std::filesystem::resize_file(path_, size, error);
  if (error) throw tessera::DataError(fmt::format("{}: cannot be shortened: {}", path_.string(), error.message()));
}

void MetricsFile::write(const tools::Json& object) {
  const std::string text = object.dump() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  if (written && std::fflush(file_.get()) == 0) return;
  throw tessera::DataError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
}

}  // namespace tessera::trainer
