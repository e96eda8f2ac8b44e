// Element types and their names.
#include "tessera/base/dtype.hpp"

#include <doctest/doctest.h>

#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"

using namespace tessera;

TEST_CASE("every dtype is found by its name, and has its element's size") {
  for (DType type : {DType::fp32, DType::bf16, DType::fp16}) CHECK(dtype_from_string(to_string(type)) == type);
  CHECK(size_of(dtype_of<float>) == Bytes(sizeof(float)));
  CHECK(size_of(dtype_of<bf16>) == Bytes(sizeof(bf16)));
  CHECK(size_of(dtype_of<fp16>) == Bytes(sizeof(fp16)));
}

TEST_CASE("an unknown dtype is an error that names it and the choices") {
  CHECK_THROWS_WITH_AS(dtype_from_string("fp8"), "unknown element type \"fp8\": choose fp32, bf16 or fp16", UsageError);
  CHECK_THROWS_AS(dtype_from_string(""), UsageError);
  CHECK_THROWS_AS(dtype_from_string("FP32"), UsageError);
}
