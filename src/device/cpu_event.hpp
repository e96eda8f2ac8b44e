// An event of the CPU: a position in the order of the stream that recorded it last. A wait copies that position when it
// is issued, so a later record, on whichever stream, does not change what it waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/event_implementation.hpp"
#include "device/progress.hpp"

namespace tessera::device {

class CpuEvent final : public Event::Implementation {
 public:
  struct Record {
    std::shared_ptr<Progress> progress;  // of the recording stream; null when never recorded
    std::uint64_t position = 0;
    std::shared_ptr<const std::string> event_name;  // outlives the event, for errors
  };

  explicit CpuEvent(std::string name);

  Device device() const override { return Device::cpu(); }
  const std::string& name() const override { return *record_.event_name; }
  bool recorded() const override { return record_.progress != nullptr; }
  bool complete() const override;
  bool wait_on_host(std::chrono::steady_clock::time_point deadline) const override {
    return record_.progress->wait_for(record_.position, deadline);
  }

  const Record& latest() const { return record_; }
  void record(const std::shared_ptr<Progress>& progress, std::uint64_t position);

 private:
  Record record_;
};

}  // namespace tessera::device
