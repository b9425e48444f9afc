// Which Pythons may read .parquet files for a run, the first that has pyarrow.
#pragma once

#include <string>
#include <vector>

namespace stepc::train {

// $STEPC_PYTHON alone, where that is set. Else that of the active virtual environment, the .venv of a folder above this
// program, and whatever `python3` is.
std::vector<std::string> pythons();

}  // namespace stepc::train
