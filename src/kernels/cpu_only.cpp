// The refusal of devices that this build has no kernels for.
#include "kernels/cpu_only.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::kernels {

Stream& cpu_only(Stream& stream, std::string_view kernel) {
  if (stream.device().kind() == DeviceKind::cpu) return stream;
  throw UnavailableError(fmt::format("kernel {} on stream \"{}\" ({}): this build of Tessera has CPU kernels only",
                                     kernel, stream.name(), to_string(stream.device())));
}

}  // namespace tessera::kernels
