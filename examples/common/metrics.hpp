// The file of --metrics: one JSON object per line and step. Figures that claims of equality rest on stand there twice:
// as a number, and as the bits of the value in hexadecimal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "json/json.hpp"

namespace examples {

struct WorkUnit {
  std::string_view name = "samples";  // a literal
  std::size_t per_sample = 1;
};

struct StepMetrics {
  std::size_t step = 0;  // from 1
  float loss = 0.0f;     // average over ranks and micro-batches
  double gradient_norm = 0.0;
  float learning_rate = 0.0f;
  std::size_t samples = 0;  // of this step, over all ranks
  double seconds = 0.0;
  bool skipped = false;             // the gradient was not finite, and nothing changed
  std::optional<float> loss_scale;  // of the next step; where the loss is scaled
  // Where the step was followed by an evaluation.
  std::optional<double> accuracy;
  std::optional<double> top5_accuracy;
  std::optional<double> held_out_loss;
  std::optional<std::size_t> held_out_samples;  // that it looked at
  tools::Json ranks;                            // of --metrics-per-rank; null else

  double samples_per_second() const { return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0; }
  double units_per_second(const WorkUnit& unit) const {
    return samples_per_second() * static_cast<double>(unit.per_sample);
  }
};

// Speed stands there in samples, and in `unit` where that is another. `memory` is added when it is an object.
tools::Json to_json(const StepMetrics& metrics, const WorkUnit& unit, const tools::Json& memory);

class MetricsFile {
 public:
  // Makes the file. One that exists is left as it is for now: the run may yet be refused. Throws DataError naming the
  // path.
  explicit MetricsFile(std::filesystem::path path);

  // Before the first write() of a run that goes on from none: empties it.
  void empty();
  // Before the first write() of one that goes on: leaves the objects of the run's first `steps` steps, and removes
  // those of steps that will be taken again; of a pipe or a terminal nothing. Throws DataError naming the path and the
  // line that is no such object.
  void keep_first(std::size_t steps);

  // One line, on its way to the file system when this returns. Throws DataError, when the disk is full for example.
  void write(const tools::Json& object);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void shorten(std::uintmax_t size);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace examples
