// Figures from charts: plot_chart.py, carried along in the program, run by a Python that has matplotlib.
// plot_chart.py --help describes the JSON of a chart: lines, and stacked bars.
#pragma once

#include <string>

#include "json/json.hpp"

namespace tools {

// Whether a figure of that name can be drawn: it ends in .svg or .png.
bool is_figure(const std::string& path);

// Writes the figure, whole or not at all. The Python is that of the environment variable TESSERA_PLOT_PYTHON, or else
// the first of python3 on the PATH and the system's, /usr/bin/python3, that has matplotlib.
// Throws tessera::UnavailableError, which says what to install, where none has; tessera::DataError where the figure
// cannot be written; tessera::InternalError for a chart that cannot be drawn.
void plot(const Json& chart, const std::string& figure);

}  // namespace tools
