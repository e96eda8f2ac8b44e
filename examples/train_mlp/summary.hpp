// The lines that a run opens with, and those of its evaluations.
#pragma once

#include <string>

#include "common/metrics.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "train_mlp/evaluation.hpp"
#include "train_mlp/job.hpp"

namespace examples {

std::string headline(const Job& job, tessera::FullyShard& model);
std::string evaluation_line(const StepMetrics& now, const RunLength& length, const EvaluationResult& result);

}  // namespace examples
