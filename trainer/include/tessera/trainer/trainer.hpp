// Everything that a trainer of one's own needs: examples/trainer_of_your_own.cpp is one.
#pragma once

#include "tessera/nn/with_element.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/fit.hpp"
#include "tessera/trainer/held_out.hpp"
#include "tessera/trainer/labelled_batches.hpp"
#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/program.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/run_summary.hpp"
#include "tessera/trainer/start.hpp"
#include "tessera/trainer/step_metrics.hpp"
#include "tessera/trainer/training.hpp"
