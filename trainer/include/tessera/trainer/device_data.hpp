// Batches and results where the rank computes: in place on the CPU, through copies on a CUDA device. Memory of the
// device grows with the largest batch; reserve() takes it before the first one.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/device/arena.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

inline bool computes_on_host(const tessera::Stream& stream) {
  return stream.device().kind() == tessera::DeviceKind::cpu;
}

// Values on their way to a device: from pinned memory, on a stream of their own, while the device computes with those
// before. Two places take turns.
class Crossing {
 public:
  Crossing(tessera::Device device, tessera::Bytes size)
      : size_(size),
        first_(device, size),
        second_(device, size),
        stream_(device, {.name = "batches", .mode = immediate}) {}

  tessera::Bytes size() const { return size_; }

  // Where the values are for work that is enqueued on `to` from now on, until the next call. They may go at once.
  const std::byte* send(tessera::Stream& to, const void* values, tessera::Bytes size) {
    Place& before = turn_ ? second_ : first_;
    if (before.arrived.recorded()) to.record(before.used);  // whatever reads it has been enqueued
    turn_ = !turn_;
    Place& place = turn_ ? second_ : first_;
    if (place.used.recorded()) {
      host_.wait(place.arrived);
      stream_.wait(place.used);
    }
    std::memcpy(place.pinned.data(), values, size.count());
    tessera::kernels::copy(stream_, place.copy.data(), place.pinned.data(), size);
    stream_.record(place.arrived);
    stream_.rethrow_failure();
    to.wait(place.arrived);
    return place.copy.data();
  }

 private:
  static constexpr tessera::StreamMode immediate = tessera::StreamMode::immediate;

  struct Place {
    Place(tessera::Device device, tessera::Bytes size)
        : pinned(tessera::Arena::on_host_of(device, size)),
          copy(device, size),
          arrived(device, "batch arrived"),
          used(device, "batch used") {}
    tessera::Arena pinned;
    tessera::Arena copy;
    tessera::Event arrived;
    tessera::Event used;  // by the stream that computes
  };

  tessera::Bytes size_;
  Place first_;
  Place second_;
  bool turn_ = false;
  tessera::Stream stream_;  // after the places, which its work uses
  tessera::Stream host_{tessera::Device::cpu(), {.name = "batches, host", .mode = immediate}};
};

// Values that the host has and the device reads.
template <typename T>
class OnDevice {
 public:
  // Memory for so many values, where the stream's device has its own.
  void reserve(tessera::Stream& stream, std::size_t count) {
    const tessera::Bytes size(count * sizeof(T));
    if (computes_on_host(stream) || (crossing_ && crossing_->size() >= size)) return;
    stream.synchronize();  // the smaller one may be in use
    crossing_.reset();
    crossing_ = std::make_unique<Crossing>(stream.device(), size);
  }

  // The same values on the stream's device, for what is enqueued on the stream until the next call. On the CPU `values`
  // must stay until the stream has got here.
  std::span<const T> put(tessera::Stream& stream, std::span<const T> values) {
    if (computes_on_host(stream) || values.empty()) return values;
    reserve(stream, values.size());
    const std::byte* const there = crossing_->send(stream, values.data(), tessera::Bytes(values.size_bytes()));
    return {reinterpret_cast<const T*>(there), values.size()};
  }

 private:
  std::unique_ptr<Crossing> crossing_;
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

}  // namespace tessera::trainer

#pragma GCC visibility pop
