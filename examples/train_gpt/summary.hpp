// The lines that a run opens with, and those of its evaluations.
#pragma once

#include <string>

#include "common/metrics.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "train_gpt/job.hpp"

namespace examples {

std::string headline(const Job& job, tessera::FullyShard& model);
// sample: may be empty.
std::string evaluation_lines(const StepMetrics& now, const RunLength& length, const std::string& sample);
std::string closing_sample(const std::string& sample);

}  // namespace examples
