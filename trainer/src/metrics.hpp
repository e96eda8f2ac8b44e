// The file of --metrics: one JSON object per line and step. Figures that claims of equality rest on stand there twice:
// as a number, and as the bits of the value in hexadecimal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "json/json.hpp"
#include "tessera/trainer/step_metrics.hpp"

namespace tessera::trainer {

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

}  // namespace tessera::trainer
