// The comparison has a row for each strategy, precision and mesh of ranks, with the bytes that the plan says, those
// that a rank really took, and those of the formula.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "probe/memory_report.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/strategy.hpp"

namespace bench {

struct FormulaInput {
  tessera::Strategy strategy;
  bool mixed;  // bf16 or fp16 parameters and gradients
  std::size_t ranks;
  std::size_t replicas = 1;
  std::size_t micro_batches;
};

double bytes_per_parameter(const FormulaInput& input);

// Rajbhandari et al., "ZeRO" (SC'20), section 5: everything in half precision but the optimizer, whatever input.mixed.
double bytes_per_parameter_in_the_paper(const FormulaInput& input);

struct NamedPrecision {
  std::string name;
  tessera::Precision precision;
  tessera::Bytes activations;  // asked for as a block of the arena; none: not counted
};

// R replicas of the ranks, each of ranks / R; R divides them.
struct Mesh {
  std::size_t ranks;
  std::size_t replicas = 1;
};

struct Comparison {
  std::string model_name;
  models::Model model;
  std::vector<tessera::Strategy> strategies;
  std::vector<NamedPrecision> precisions;
  std::vector<Mesh> meshes;
  std::size_t prefetch = 1;
  std::size_t micro_batches = 1;
  std::size_t most_real_ranks = 8;  // of which all run; of more one runs, and the others are imagined
  bool measure = true;
};

struct Row {
  tessera::Strategy strategy;
  std::string precision;
  Mesh mesh;
  tessera::Bytes formula;  // persistent, by numerics.md
  tessera::Bytes paper;    // the ZeRO paper's accounting
  tessera::probe::RankMemory
      memory;       // of a rank, one that differs from the plan if any does; measurable: it really ran
  std::string how;  // "8 real ranks", "rank 0 of 512 simulated", "not measured: …"

  // Returns the planned bytes of what the formula speaks of: parameters, gradients and the optimizer's states.
  tessera::Bytes persistent() const;
  bool measured_as_planned() const;  // in every category
};

// Plans all rows, and measures them one after the other, each when the machine has the memory for it. `shown` is called
// with each row as it is done.
template <typename Shown>
std::vector<Row> compare(const Comparison& comparison, Shown&& shown);

Row make_row(const Comparison& comparison, tessera::Strategy strategy, const NamedPrecision& precision,
             const Mesh& mesh);

template <typename Shown>
std::vector<Row> compare(const Comparison& comparison, Shown&& shown) {
  std::vector<Row> rows;
  for (const NamedPrecision& precision : comparison.precisions) {
    for (const tessera::Strategy strategy : comparison.strategies) {
      for (const Mesh& mesh : comparison.meshes) {
        rows.push_back(make_row(comparison, strategy, precision, mesh));
        shown(rows.back());
      }
    }
  }
  return rows;
}

}  // namespace bench
