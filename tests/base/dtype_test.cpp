// Element types and their names.
#include "tessera/base/dtype.hpp"

#include <doctest/doctest.h>

#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"

using namespace tessera;

TEST_CASE("every dtype is found by its name, and has its element's size") {
  for (DType type : {DType::fp32, DType::bf16, DType::fp16, DType::int8}) {
    CHECK(wire_type_from_string(to_string(type)) == type);
  }
  CHECK(size_of(dtype_of<float>) == Bytes(sizeof(float)));
  CHECK(size_of(dtype_of<bf16>) == Bytes(sizeof(bf16)));
  CHECK(size_of(dtype_of<fp16>) == Bytes(sizeof(fp16)));
}

TEST_CASE("an unknown dtype is an error that names it and the choices") {
  CHECK_THROWS_WITH_AS(wire_type_from_string("fp8"),
                       "unknown type to travel in \"fp8\": choose fp32, bf16, fp16 or int8", UsageError);
  CHECK_THROWS_AS(wire_type_from_string(""), UsageError);
  CHECK_THROWS_AS(wire_type_from_string("FP32"), UsageError);
}
