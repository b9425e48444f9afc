// The command line: subcommands, flags, help, and how errors become one line and an exit code.
//   0 done     1 the run failed   2 wrong usage or bad input
//   ended by   129 SIGHUP   130 SIGINT   141 SIGPIPE   143 SIGTERM
#pragma once

namespace stepc::train {

int run_app(int argc, char** argv);

}  // namespace stepc::train
