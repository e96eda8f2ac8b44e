// A mark in a stream's order that other streams can wait for. Re-recordable: a wait refers to the latest record
// made before the wait was issued.
//
// Invariants: waiting for an event that was never recorded is a UsageError (CUDA would ignore it).
// Thread safety: one host thread at a time may record it and issue waits for it; streams complete it from their own
// threads.
#pragma once

#include <memory>
#include <string>

#include "tessera/device/device.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Event {
 public:
  // `name` appears in errors. Allocates once; recording and waiting never allocate.
  Event(Device device, std::string name);
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  const std::string& name() const;
  bool recorded() const;  // at least once
  bool complete() const;  // everything before the latest record has run; false when never recorded

  class [[gnu::visibility("hidden")]] Implementation;
  Implementation& implementation() { return *implementation_; }

 private:
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera

#pragma GCC visibility pop
