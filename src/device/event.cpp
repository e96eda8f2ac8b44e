// Event: chooses the implementation by device.
#include "tessera/device/event.hpp"

#include <utility>

#include "device/event_implementation.hpp"

namespace tessera {

Event::Event(Device device, std::string name)
    : implementation_(device.kind() == DeviceKind::cpu ? device::make_cpu_event(std::move(name))
                                                       : device::make_cuda_event(device, std::move(name))) {}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;

const std::string& Event::name() const { return implementation_->name(); }
bool Event::recorded() const { return implementation_->recorded(); }
bool Event::complete() const { return implementation_->complete(); }

}  // namespace tessera
