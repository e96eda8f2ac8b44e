// How much of the held-out samples the model gets right: every rank takes a slice, and all get the same answer.
#pragma once

#include <cstddef>

#include "common/device_data.hpp"
#include "common/held_out_slice.hpp"
#include "train_mlp/dataset.hpp"
#include "train_mlp/model.hpp"

namespace examples {

struct EvaluationResult {
  std::size_t correct = 0;
  std::size_t samples = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
};

template <typename T>
class Evaluation {
 public:
  // rows: samples of one pass at most. `held_out` must stay, and the evaluation until the model is gone.
  Evaluation(const HeldOut& held_out, tessera::World& world, std::size_t rows);

  // Between steps. Every rank opens the same number of windows, also with a shorter slice than others', or none.
  // Collective; synchronises.
  EvaluationResult run(Mlp<T>& mlp, tessera::FullyShard& model);

 private:
  void count(const tessera::SampleBatch& chosen, Mlp<T>& mlp, tessera::FullyShard& model);

  const HeldOut& held_out_;
  tessera::World& world_;
  HeldOutSlice slice_;
  tessera::LabelledBatch batch_;
  OnDevice<float> features_;
  OnDevice<std::int32_t> labels_;
  FromDevice<double> correct_{1};  // of the last pass
};

}  // namespace examples
