// The control channel of ranks that are processes: a connection to rank 0's server, and a thread that listens to it.
#pragma once

#include <chrono>
#include <memory>

#include "comm/control/control.hpp"
#include "comm/rendezvous/join.hpp"

namespace tessera::comm {

// Blocks, and throws as join() does. The end of what it returns ends the connection; without leave() before, the other
// ranks hear that this one has crashed.
std::unique_ptr<Control> join_rendezvous(const JoinOptions& options, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
