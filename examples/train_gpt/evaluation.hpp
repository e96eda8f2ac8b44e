// The loss on held-out tokens: every rank takes a slice, and all get the same answer.
#pragma once

#include "common/device_data.hpp"
#include "common/held_out_slice.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/tokens.hpp"
#include "train_gpt/model.hpp"

namespace examples {

template <typename T>
class Evaluation {
 public:
  // rows: sequences of one pass at most. `held_out` must stay, and the evaluation until the model is gone.
  Evaluation(const tessera::TokenSequences& held_out, tessera::World& world, std::size_t rows)
      : held_out_(held_out), world_(world), slice_(held_out.size(), world, rows) {}

  // The mean cross entropy of a token. Between steps. Every rank opens the same number of windows, also with a shorter
  // slice than others', or none. Collective; synchronises.
  double run(Gpt<T>& gpt, tessera::FullyShard& model);

 private:
  const tessera::TokenSequences& held_out_;
  tessera::World& world_;
  HeldOutSlice slice_;
  tessera::TokenBatch batch_;
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  FromDevice<float> loss_{1};  // of the last pass
};

}  // namespace examples
