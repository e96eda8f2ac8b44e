// Batches and results where the rank computes: in place on the CPU, through copies on a CUDA device. All work is
// enqueued on the stream that it is given, the model's; memory of the device grows with the largest batch, that is with
// the first.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace examples {

inline bool computes_on_host(const tessera::Stream& stream) {
  return stream.device().kind() == tessera::DeviceKind::cpu;
}

// Values that the host has and the device reads.
template <typename T>
class OnDevice {
 public:
  // The same values on the stream's device, until the next call. `values` must stay until the stream has got here.
  std::span<const T> put(tessera::Stream& stream, std::span<const T> values) {
    if (computes_on_host(stream)) return values;
    const tessera::Bytes size(values.size_bytes());
    if (!copy_ || copy_->size() < size) {
      stream.synchronize();  // the smaller one may be in use
      copy_.emplace(stream.device(), size);
    }
    tessera::kernels::copy(stream, copy_->data(), values.data(), size);
    return {reinterpret_cast<const T*>(copy_->data()), values.size()};
  }

 private:
  std::optional<tessera::Arena> copy_;
};

// Values that the device writes and the host reads.
template <typename T>
class FromDevice {
 public:
  explicit FromDevice(std::size_t count) : values_(count) {}

  // Where work on the stream writes value i.
  T* at(tessera::Stream& stream, std::size_t i = 0) {
    if (computes_on_host(stream)) return values_.data() + i;
    if (!written_) written_.emplace(stream.device(), tessera::Bytes(values_.size() * sizeof(T)));
    return reinterpret_cast<T*>(written_->data()) + i;
  }
  // Enqueues their way to the host: read values() after the next synchronization.
  void fetch(tessera::Stream& stream) {
    if (written_) {
      tessera::kernels::copy(stream, values_.data(), written_->data(), tessera::Bytes(values_.size() * sizeof(T)));
    }
  }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
  std::optional<tessera::Arena> written_;
};

}  // namespace examples
