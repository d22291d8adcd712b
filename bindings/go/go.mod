module kvconn.example/engine

go 1.19
