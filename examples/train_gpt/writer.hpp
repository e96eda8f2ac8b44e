// Lets a model of bytes continue a prompt, in evaluation windows that all ranks open; only rank 0 computes in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/device_data.hpp"
#include "tessera/comm/world.hpp"
#include "train_gpt/job.hpp"
#include "train_gpt/model.hpp"

namespace examples {

template <typename T>
class Writer {
 public:
  Writer(const Job& job, const tessera::World& world) : job_(job), writes_(world.rank() == 0) {}

  // The prompt and `bytes` more, fit for a terminal; empty on other ranks than 0. `draw` tells texts of one run apart.
  // Between steps. Collective; synchronises.
  std::string write(Gpt<T>& gpt, tessera::FullyShard& model, std::size_t bytes, std::size_t draw);

 private:
  void write_byte(Gpt<T>& gpt, tessera::FullyShard& model, double uniform);

  const Job& job_;
  bool writes_;
  std::vector<std::int32_t> text_;  // prompt included
  OnDevice<std::int32_t> seen_;     // the part of it that the model reads
  std::vector<float> logits_;       // of the next token
};

}  // namespace examples
