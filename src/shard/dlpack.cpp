// The tensor, its extents and its strides live together, until the consumer calls the deleter.
#include "tessera/shard/dlpack.hpp"

#include <cstdint>
#include <memory>
#include <vector>

#include "shard/dlpack_abi.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace {

struct DlpackTensor {
  DLManagedTensor managed;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

void delete_dlpack(DLManagedTensor* tensor) {
  const std::unique_ptr<DlpackTensor> whole(static_cast<DlpackTensor*>(tensor->manager_ctx));
}

DLDataType dlpack_type(DType type) {
  switch (type) {
    case DType::fp32: return {.code = kDLFloat, .bits = 32, .lanes = 1};
    case DType::bf16: return {.code = kDLBfloat, .bits = 16, .lanes = 1};
    case DType::fp16: return {.code = kDLFloat, .bits = 16, .lanes = 1};
    case DType::u8:
    case DType::int8: break;
  }
  throw InternalError("an element type that DLPack was not told of");
}

DLDevice dlpack_device(Device device) {
  return {.device_type = device.kind() == DeviceKind::cuda ? kDLCUDA : kDLCPU, .device_id = device.index()};
}

}  // namespace

DLManagedTensor* dlpack_view(void* data, DType type, const Shape& shape, Device device) {
  auto tensor = std::make_unique<DlpackTensor>();
  tensor->shape.assign(shape.begin(), shape.end());
  tensor->strides.resize(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    tensor->strides[axis] = stride;
    stride *= tensor->shape[axis];
  }
  tensor->managed = {.dl_tensor = {.data = data,
                                   .device = dlpack_device(device),
                                   .ndim = static_cast<std::int32_t>(shape.size()),
                                   .dtype = dlpack_type(type),
                                   .shape = tensor->shape.data(),
                                   .strides = tensor->strides.data(),
                                   .byte_offset = 0},
                     .manager_ctx = tensor.get(),
                     .deleter = delete_dlpack};
  return &tensor.release()->managed;
}

}  // namespace tessera
