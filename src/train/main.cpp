// The stepc command.
#include "train/command/app.h"

int main(int argc, char** argv) { return stepc::train::run_app(argc, argv); }
