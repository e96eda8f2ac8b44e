// A watch, and how its call sites are told.
#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "probe/allocation_log.hpp"
#include "tessera/base/error.hpp"

namespace tessera::probe {
namespace {

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : symbol;
}

// Without a symbol: the module and an offset in it, for addr2line.
std::string describe_frame(void* address) {
  Dl_info info = {};
  if (::dladdr(address, &info) == 0) return fmt::format("{}", address);
  const auto offset = static_cast<const std::byte*>(address) - static_cast<const std::byte*>(info.dli_fbase);
  const std::string name = info.dli_sname == nullptr ? "?" : demangled(info.dli_sname);
  return fmt::format("{} ({}+{:#x})", name, info.dli_fname, offset);
}

}  // namespace

AllocationWatch::AllocationWatch() {
  if (!start_watching()) throw UsageError("allocations are being watched already: one AllocationWatch at a time");
}

AllocationWatch::~AllocationWatch() { stop(); }

void AllocationWatch::stop() {
  if (!running_) return;
  running_ = false;
  final_count_ = watched_allocations();
  stop_watching();
}

std::uint64_t AllocationWatch::count() const { return running_ ? watched_allocations() : final_count_; }

std::string AllocationWatch::describe() {
  stop();
  std::string text = fmt::format("{} allocations", final_count_);
  for (const Site& site : watched_sites()) {
    text += "\n  from";
    for (int frame = 0; frame < site.depth; ++frame) {
      text += "\n    " + describe_frame(site.frames[static_cast<std::size_t>(frame)]);
    }
  }
  return text;
}

}  // namespace tessera::probe
