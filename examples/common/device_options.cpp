// Where ranks compute.
#include "common/device_options.hpp"

#include <fmt/format.h>

#include "common/command_line.hpp"
#include "tessera/comm/start.hpp"

namespace examples {

using tessera::BackendChoice;
using tessera::DeviceChoice;
using tessera::DeviceKind;
using tessera::SumChoice;

void add_device_options(CommandLine& line, RunOptions& options) {
  line.choice("--device",
              {{"auto", [&] { options.device = DeviceChoice::automatic; }},
               {"cpu", [&] { options.device = DeviceChoice::cpu; }},
               {"cuda", [&] { options.device = DeviceChoice::cuda; }}},
              "Where ranks compute; several may share a CUDA device [auto: on CUDA devices where there are any]");
  line.choice("--backend",
              {{"auto", [&] { options.backend = BackendChoice::automatic; }},
               {"nccl", [&] { options.backend = BackendChoice::nccl; }}},
              "How ranks that are threads exchange data [auto: they read each other's memory]; nccl: by NVIDIA's "
              "library, which TESSERA_NCCL names in the environment");
  line.choice(
      "--sums",
      {{"ranked", [&] { options.sums = SumChoice::ranked; }}, {"fast", [&] { options.sums = SumChoice::fast; }}},
      "With NCCL: gradients are summed in fp32 in rank order [ranked], or by NCCL in the type in which they "
      "travel and in an order of its own");
}

void check_device_options(const CommandLine& line, const RunOptions& options) {
  if (options.simulated) {
    for (const char* name : {"--backend", "--sums"}) {
      if (!line.given(name)) continue;
      throw OptionError(fmt::format("{} and --simulate-world exclude each other: a simulated rank has no peers", name));
    }
    if (options.device == DeviceChoice::cuda) {
      throw OptionError("--device cuda and --simulate-world exclude each other: a simulated rank computes on the CPU");
    }
  }
  if (options.tf32 && device_kind(options) == DeviceKind::cpu) {
    throw OptionError("--precision tf32: the CPU's products have no such type; use --device cuda, or --precision fp32");
  }
}

DeviceKind device_kind(const RunOptions& options) {
  const bool on_cpu = tessera::how_started().launcher == tessera::Launcher::mpi || options.simulated;
  return on_cpu ? DeviceKind::cpu : tessera::resolve(options.device);
}

std::string precision_text(const RunOptions& options) {
  return options.tf32 ? "fp32, products in tf32" : std::string(to_string(options.precision.parameter));
}

}  // namespace examples
