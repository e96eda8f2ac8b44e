// SIGTERM and SIGINT: a run that saves checkpoints ends its step, saves, and ends; any other ends at once, and so does
// this one at a second signal.
#pragma once

#include <string>

#include "tessera/comm/world.hpp"

namespace tessera::trainer {

// From now on the first of these signals is only noted, in the whole process; nothing undoes that.
void note_stop_signals();

// The signal that some rank's process has noted, the same on every rank; 0: none. Collective.
int agreed_stop_signal(tessera::World& world);

// Returns the signal that ended this process's run, for its exit code; 0: none did.
int stopped_by();
void set_stopped_by(int signal);

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace tessera::trainer
