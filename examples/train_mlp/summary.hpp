// The lines that a run opens and ends with.
#pragma once

#include <cstddef>
#include <string>

#include "common/metrics.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "train_mlp/evaluation.hpp"
#include "train_mlp/trainer.hpp"

namespace examples {

std::string headline(const Job& job, tessera::FullyShard& model);
std::string evaluation_line(const StepMetrics& now, std::size_t steps, const EvaluationResult& result);
std::string closing_line(const Job& job, double seconds);

}  // namespace examples
