// The stepc command.
#include "train/app.h"

int main(int argc, char** argv) { return stepc::train::run_app(argc, argv); }
