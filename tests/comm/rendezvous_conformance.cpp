// Processes that meet at a rendezvous, with torchrun's variables.
//
// usage: rendezvous_conformance [PART_OF_A_NAME | --large]
#include <chrono>
#include <cstdlib>

#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "process_conformance.hpp"

int main(int argc, char** argv) {
  using namespace tessera::comm;
  constexpr std::chrono::seconds minute{60};
  const tessera::Start start = tessera::how_started();
  const MeetingPoint point = meeting_point([](const char* name) { return std::getenv(name); }, start, minute);
  const std::unique_ptr<Control> joined = join_rendezvous(join_options(point.place, start, minute), minute);
  Control& control = *joined;
  RendezvousIntroduction introduction(control);
  const int code = tessera::run_properties(introduction, {argv, static_cast<std::size_t>(argc)});
  control.leave();
  return code;
}
