// From the precision of a run to the element type that its model is a template over.
#pragma once

#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/plan/strategy.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// body(T{}), with T what the windows show parameters in.
template <typename Body>
auto with_element(const tessera::Precision& precision, Body&& body) {
  switch (precision.parameter) {
    case tessera::DType::fp32: return body(float{});
    case tessera::DType::bf16: return body(tessera::bf16{});
    case tessera::DType::fp16: return body(tessera::fp16{});
    case tessera::DType::u8:
    case tessera::DType::int8: break;
  }
  throw tessera::InternalError("an element type that is none");
}

}  // namespace tessera::nn

#pragma GCC visibility pop
