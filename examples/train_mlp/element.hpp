// From the precision of a run to the element type that its model is a template over.
#pragma once

#include "tessera/base/error.hpp"
#include "tessera/plan/strategy.hpp"

namespace examples {

// body(T{}), with T what the windows show parameters in.
template <typename Body>
auto with_element(const tessera::Precision& precision, Body&& body) {
  switch (precision.parameter) {
    case tessera::DType::fp32: return body(float{});
    case tessera::DType::bf16:
    case tessera::DType::fp16: break;
  }
  throw tessera::UnavailableError("train_mlp computes in fp32 only");
}

}  // namespace examples
